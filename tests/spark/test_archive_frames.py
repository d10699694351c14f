"""Archives as DataFrames: in any directory, and with columns of several versions of a model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.pipeline.archive.archive import Archive
from spark.archive_tables import write_tables


@pytest.fixture
def elsewhere(spark: Any) -> Iterator[Any]:
    """Spark whose default file system is not the local one, as on a cluster."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:1")
    yield spark
    settings.set("fs.defaultFS", before)


@pytest.mark.spec("PIPE-6", "PIPE-12")
@pytest.mark.parametrize("name", ["plain", "day[1]", "{a,b}", "what? 100%", "a*b\\c"])
def test_an_archive_is_read_from_any_directory_and_default_file_system(
    elsewhere: Any, tmp_path: Path, name: str
) -> None:
    path = tmp_path / name / "archive"
    path.parent.mkdir()
    write_tables(path, {"trade": ("seq BIGINT", [{"seq": 1}, {"seq": 2}, {"seq": 3, "stream": 2}])})
    frame = Archive.open(path).frame(elsewhere, "trade")
    found = sorted((row.seq, str(row.date), row.stream) for row in frame.collect())
    assert found == [(1, "2024-01-02", 1), (2, "2024-01-02", 1), (3, "2024-01-02", 2)]


@pytest.mark.spec("PIPE-6")
def test_rows_of_an_older_version_are_null_in_the_newer_column(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    for seq, ddl in enumerate(["seq BIGINT", "seq BIGINT, size BIGINT", "seq BIGINT"], start=1):
        write_tables(path, {"tick": (ddl, [{"seq": seq, "size": 7}])})
    rows = Archive.open(path).frame(spark, "tick").collect()
    assert sorted((row.seq, row.size) for row in rows) == [(1, None), (2, 7), (3, None)]
