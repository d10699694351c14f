"""What the pipeline reads: journals and recorded feeds, cut into slices, and the rows and facts of a slice."""
