"""Columns of an archive's tables: columns are added, and never removed or given another type."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from penstock.base.errors import ArchiveSchemaError
from penstock.model import MessageModel, shipped, shipped_names
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.archive.commits import Account
from penstock.spark.pipeline.archive.schemas import columns_of, evolved, type_of
from penstock.spark.pipeline.archive.tables import ENVELOPE, table_schema
from unit.archive_kit import DDL, check_whole, stage, step

MODEL = """
name = "tick"
id = 4711
version = {version}
[[field]]
name = "price"
type = "price"
decimals = {decimals}
"""
NEWER = """
[[field]]
name = "size"
type = "i64"
since = 2
"""


def ddl_of(version: int, decimals: int = 4) -> str:
    text = MODEL.format(version=version, decimals=decimals) + (NEWER if version > 1 else "")
    return table_schema(MessageModel.parse(text))


def commit(archive: Archive, ddl: str) -> None:
    staging = archive.begin()
    files = [stage(staging, "tick", "2024-01-02", 1, [archive.catalogue.number + 1])]
    archive.commit(staging, "append", files=files, account=Account(), schemas={"tick": ddl})


@pytest.mark.spec("PIPE-6")
def test_an_older_version_of_a_model_keeps_the_columns_of_the_newer(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        commit(archive, ddl_of(1))
        assert "size" not in columns_of(archive.catalogue.schemas["tick"])
        commit(archive, ddl_of(2))
        newer = archive.catalogue.schemas["tick"]
        assert list(columns_of(newer))[-4:] == ["price", "size", "date", "stream"]
        commit(archive, ddl_of(1))
        assert archive.catalogue.schemas["tick"] == newer
    assert Archive.open(tmp_path / "archive").catalogue.schemas["tick"] == newer


@pytest.mark.spec("PIPE-6")
def test_other_decimals_are_refused_before_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    with Archive.writing(path) as archive:
        commit(archive, ddl_of(1))
        with pytest.raises(ArchiveSchemaError, match=r"'price' of table 'tick' is DECIMAL\(18,4\).*DECIMAL\(18,6\)"):
            commit(archive, ddl_of(2, decimals=6))
        assert archive.catalogue.number == 1
        assert not list((path / "_staging").iterdir())
        assert len(list((path / "_files").rglob("*.parquet"))) == 1
        commit(archive, ddl_of(2))
    assert len(pq.read_table(Archive.open(path).paths("tick"))) == 2


def test_the_columns_of_two_versions_are_combined() -> None:
    known = (
        "`a` BIGINT COMMENT 'one, two (three', b DECIMAL(18, 4), c ARRAY<STRUCT<x: INT, y: INT>>, date DATE, stream INT"
    )
    assert list(columns_of(known)) == ["a", "b", "c", "date", "stream"]
    assert type_of(columns_of(known)["c"]) == "ARRAY<STRUCT<X:INT,Y:INT>>"
    assert evolved("t", known, "b decimal(18,4) NOT NULL, a BIGINT") == known
    assert evolved("t", known, "d INT, a BIGINT").endswith("Y: INT>>, d INT, date DATE, stream INT".replace("Y", "y"))
    with pytest.raises(ArchiveSchemaError, match="is BIGINT in the archive and INT"):
        evolved("t", known, "A INT")


def test_tables_with_unchanged_columns_are_not_in_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    with Archive.writing(path) as archive:
        assert step(archive).schemas == {"trade": DDL, "quote": DDL}
        assert step(archive).schemas == {}
    assert check_whole(path) == 20


def test_quotes_in_column_comments_do_not_split_the_comments() -> None:
    for name in shipped_names():
        model = shipped(name)
        found = set(columns_of(table_schema(model)))
        fields = {field.name for field in model.fields}
        assert fields <= found <= fields | {*ENVELOPE, "date", "stream"}, name
