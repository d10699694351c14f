"""An archive: Parquet tables that change by commits, each of which counts for all tables or for none.

Read commits.py first: an archive is its commits. archive.py reads and writes them, placing.py keeps their files,
writer.py makes files of rows, tables.py and schemas.py say which columns a row has. days.py knows which source each
trading day comes from; compaction.py merges and removes files.
"""

from penstock.spark.pipeline.archive.archive import Archive

__all__ = ["Archive"]
