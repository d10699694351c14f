"""Input of the pipeline: journals and recorded feeds, divided into slices, and the rows and facts of a slice."""
