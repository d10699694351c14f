"""The pipeline: capture, normalise, derive, archive, audit. Each step maps DataFrames to DataFrames; one runner
combines them.

runner.py shows the whole sequence. The modules in that order:

    sources/         what there is to read, from where the last commit left off, cut into slices (capture.py), and the
                     rows of a slice (normalise.py)
    work.py          what Spark's workers do with a slice: rows from sources/, files by archive/writer.py
    archive/         the tables; commits.py first: an archive is its commits, a commit one document for all tables
    deriving.py      derive/: tables that follow from others, step by step or all at once
    audit/           what the tables prove

An archive or a journal can also be replayed to live subscribers (replay.py) and used to plan multicast groups
(plan.py).
"""
