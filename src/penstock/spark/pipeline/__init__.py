"""The pipeline: capture, normalise, derive, archive, audit. Each step maps DataFrames to DataFrames; one runner
combines them.

runner.py shows the whole sequence. The modules in that order:

    capture.py       finds new input since the last commit, and cuts the input into slices
    work.py          work of a Spark worker on a slice: normalise.py (rows: tables.py, facts.py), writer.py (files)
    archive.py       the tables; read commits.py first: an archive is a log of commits, one document for all tables each
    deriving.py      derive/: tables computed from other tables, incrementally or all at once
    audit/           reports computed from the tables

An archive or a journal can also be replayed to live subscribers (replay.py) and used to plan multicast groups
(plan.py).
"""
