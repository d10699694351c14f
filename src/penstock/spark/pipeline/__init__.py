"""The pipeline: capture, normalise, derive, archive, audit; each step from DataFrames to DataFrames, and one runner.

runner.py has the whole way in one place. In its order:

    sources/         what there is to read, from where the last commit left off, cut into slices (capture.py), and the
                     rows of a slice (normalise.py)
    work.py          what Spark's workers do with a slice: rows from sources/, files by archive/writer.py
    archive/         the tables; commits.py first: an archive is its commits, a commit one document for all tables
    deriving.py      derive/: tables that follow from others, step by step or all at once
    audit/           what the tables prove

Besides, from an archive or a journal: replay.py to live subscribers, plan.py to a map of topics to groups.
"""
