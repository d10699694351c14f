"""The pipeline: capture, normalise, derive, archive, audit. Each step maps DataFrames to DataFrames; one runner
combines them.

runner.py shows the whole sequence. The modules in that order:

    sources/         finds new input since the last commit, cuts the input into slices (capture.py), and builds the rows
                     of a slice (normalise.py)
    work.py          work of a Spark worker on a slice: rows from sources/, files by archive/writer.py
    archive/         the tables; read commits.py first: an archive is a log of commits, one document for all tables each
    deriving.py      derive/: tables computed from other tables, incrementally or all at once
    audit/           reports computed from the tables

An archive or a journal can also be replayed to live subscribers (replay.py) and used to plan multicast groups
(plan.py).
"""
