"""An archive: Parquet tables that change by atomic commits across all tables.

Read commits.py first, because an archive is a log of commits. archive.py reads and writes them, placing.py stores their
files, writer.py writes files of rows, tables.py and schemas.py define the columns of rows. days.py finds the sources of
each trading day; compaction.py merges and removes files.
"""

from penstock.spark.pipeline.archive.archive import Archive

__all__ = ["Archive"]
