"""Messages of custom models: stored unread, and read once their model is known."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.base.errors import ArchiveError, ConfigurationError
from penstock.model import MessageModel, shipped
from penstock.security.core.sealing import Opener, StreamKey, StreamKeyRing
from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline import models as models_module
from penstock.spark.pipeline.archive import tables
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.models import models_in_band, own_models, read_again, register_models
from penstock.spark.pipeline.playing import Chosen
from penstock.spark.pipeline.recordings import plays_of_archive
from penstock.spark.pipeline.runner import balance
from penstock.spark.pipeline.sources.normalise import Known
from penstock.spark.pipeline.work import write_slice
from penstock.spark.slices import JournalSlice
from penstock.wire import Origin, decode_seal
from unit.ticks_kit import CAPTURED_NS, COUNT, DOCUMENT, NEWER, TICK, write_sealed_ticks, write_ticks

SHIPPED = tables.shipped_models()


def append(archive: Archive, path: Path) -> None:
    """A step of a run, in this process."""
    place = JournalPlace(str(path))
    staging = archive.begin()
    piece = JournalSlice(place, 1, place.measure().next_sequence - 1, [])
    result = write_slice(staging, piece, Known(list(archive.catalogue.models.values())))
    assert result.account.is_balanced
    models = models_in_band(archive.catalogue, result.documents)
    archive.commit(staging, "append", files=result.files, account=result.account, schemas=result.schemas, models=models)


def check_ticks(archive: Archive, count: int = COUNT) -> None:
    rows = pq.read_table(archive.paths("tick")).sort_by("seq").to_pylist()
    assert [row["size"] for row in rows] == list(range(1, count + 1))
    assert rows[6]["symbol"] == "symbol 7 " + 100 * "x"
    assert (rows[6]["topic"], rows[6]["seq"], rows[6]["version"]) == ("my.tick.7", 7, 1)
    assert rows[6]["captured"] >= CAPTURED_NS
    assert rows[6]["publisher"] == 1
    assert str(rows[6]["date"]) == "2024-01-01", "the date of the event, not of the capture"
    assert rows[6]["stream"] == 3


@pytest.mark.spec("PIPE-11")
def test_messages_of_an_unknown_model_are_stored_unread_and_read_when_the_model_is_given(tmp_path: Path) -> None:
    write_ticks(tmp_path / "journal")
    with Archive.writing(tmp_path / "archive") as archive:
        append(archive, tmp_path / "journal")
        account = archive.catalogue.account
        assert account.rows == {"raw": COUNT}
        assert account.unknown_models == {"4711": COUNT}
        assert not account.quarantined
        assert any("1,000 messages of the unknown model 4711" in line for line in balance(account))
        payloads = pq.read_table(archive.paths("raw")).column("payload").to_pylist()
        assert {len(each) for each in payloads} == {TICK.record_size}
        assert read_again(archive) is None
    with Archive.writing(tmp_path / "archive") as archive:
        register_models(archive, [TICK])
        commit = read_again(archive)
        assert commit is not None
        assert commit.account.rows == {"raw": -COUNT, "tick": COUNT}
        assert archive.catalogue.account.is_balanced
        assert {info.name: info.rows for info in archive.tables()} == {"tick": COUNT, "delivery": 1, "agreement": 1}
        assert read_again(archive) is None, "once"
        register_models(archive, [TICK])
        assert archive.catalogue.number == commit.number, "a known model causes no commit"
    archive = Archive.open(tmp_path / "archive")
    check_ticks(archive)
    assert sum(len(play) for play in plays_of_archive(archive, Chosen())) == COUNT, "and it can be replayed"


@pytest.mark.spec("PIPE-11")
@pytest.mark.parametrize("is_known", [False, True])
def test_sealed_messages_are_stored_sealed_and_can_be_opened_later(tmp_path: Path, is_known: bool) -> None:
    key = StreamKey("mine", 7, bytes(range(32)))
    contents = write_sealed_ticks(tmp_path / "journal", key)
    with Archive.writing(tmp_path / "archive") as archive:
        if is_known:
            register_models(archive, [TICK])
        append(archive, tmp_path / "journal")
        account = archive.catalogue.account
        assert account.rows == {"raw": len(contents)}
        assert (account.sealed, account.unknown_models, account.quarantined) == (len(contents), {}, {})
        assert any(line.startswith(f"{len(contents)} sealed messages") for line in balance(account))
        register_models(archive, [TICK])
        assert read_again(archive) is None, "a sealed record is not read as an open one"
    archive = Archive.open(tmp_path / "archive")
    assert sum(len(play) for play in plays_of_archive(archive, Chosen())) == 0, "nor is it replayed"
    ring = StreamKeyRing()
    ring.add(key)
    opener = Opener(ring)
    for row, content in zip(pq.read_table(archive.paths("raw")).sort_by("seq").to_pylist(), contents, strict=True):
        opened = opener.open(
            row["payload"], decode_seal(row["seal"]), publisher_id=row["publisher"], epoch=row["epoch"],
            topic=row["topic"].encode(), model_id=row["model_id"], model_version=row["version"],
            origin=Origin(row["stream"], row["term"], row["part"], row["origin"], row["source_seq"], row["seq"]),
        )  # fmt: skip
        assert opened == content


@pytest.mark.spec("PIPE-11")
def test_a_model_in_band_is_used_and_stored(tmp_path: Path) -> None:
    write_ticks(tmp_path / "one", document=DOCUMENT)
    write_ticks(tmp_path / "two", first=COUNT + 1)
    with Archive.writing(tmp_path / "archive") as archive:
        append(archive, tmp_path / "one")
        assert archive.catalogue.account.unknown_models == {"4711": COUNT}, "the model followed the messages"
        assert read_again(archive) is not None
        assert {info.name: info.rows for info in archive.tables()}["raw"] == 1, "the document itself"
        check_ticks(archive)
        append(archive, tmp_path / "two")
        assert archive.catalogue.account.unknown_models["4711"] == 0
        check_ticks(archive, 2 * COUNT)


@pytest.mark.spec("PIPE-11")
@pytest.mark.parametrize("how", ["in band", "given"])
def test_messages_of_a_newer_version_keep_their_new_columns(tmp_path: Path, how: str) -> None:
    newer = MessageModel.parse(NEWER)
    write_ticks(tmp_path / "one")
    write_ticks(tmp_path / "two", first=COUNT + 1, model=newer, document=NEWER if how == "in band" else "")
    with Archive.writing(tmp_path / "archive") as archive:
        register_models(archive, [TICK])
        append(archive, tmp_path / "one")
        append(archive, tmp_path / "two")
        account = archive.catalogue.account
        assert account.rows["tick"] == COUNT
        assert account.unknown_models == {"4711": COUNT}, "version 2 was not known"
        if how == "given":
            assert read_again(archive) is None, "version 1 does not read messages of version 2"
            register_models(archive, [newer])
        commit = read_again(archive)
        assert commit is not None
        assert commit.account.rows == {"raw": -COUNT, "tick": COUNT}
        assert archive.catalogue.account.is_balanced
        assert archive.catalogue.account.unknown_models == {"4711": 0}
        check_ticks(archive, 2 * COUNT)
        files = [pq.read_table(path) for path in archive.paths("tick")]
        added = pa.concat_tables(files, promote_options="default").sort_by("seq").to_pylist()
        assert [row["venue"] for row in added] == COUNT * [None] + COUNT * ["XNAS"]
        assert [row["version"] for row in added] == COUNT * [1] + COUNT * [2]


@pytest.mark.spec("PIPE-11")
def test_unreadable_rows_of_raw_are_tried_once_per_version(tmp_path: Path) -> None:
    newer = MessageModel.parse(NEWER)
    write_ticks(tmp_path / "one", model=MessageModel.parse(DOCUMENT.replace("size = 120", "size = 112")))
    write_ticks(tmp_path / "two", first=COUNT + 1)
    write_ticks(tmp_path / "three", first=2 * COUNT + 1, model=newer)
    with Archive.writing(tmp_path / "archive") as archive:
        append(archive, tmp_path / "one")
        append(archive, tmp_path / "two")
        register_models(archive, [TICK])
        assert read_again(archive) is not None
        assert archive.catalogue.account.rows == {"raw": COUNT, "tick": COUNT}, (
            "records of the first version are too short"
        )
        (tried,) = map(Path, archive.paths("raw"))
        aside = tried.rename(tmp_path / "aside")
        assert read_again(archive) is None, "the file is not read again"
        append(archive, tmp_path / "three")
        assert read_again(archive) is None, "only the new file is read"
        assert read_again(archive) is None
        register_models(archive, [newer])
        with pytest.raises(ArchiveError, match="read the table raw again"):
            read_again(archive)  # a newer version may read what the older could not
        aside.rename(tried)
        assert read_again(archive) is not None
        assert archive.catalogue.account.rows == {"raw": COUNT, "tick": 2 * COUNT}
        tried.rename(aside)
        assert read_again(archive) is None


def test_an_older_version_in_band_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        register_models(archive, [MessageModel.parse(NEWER)])
        assert models_in_band(archive.catalogue, [DOCUMENT, "no document", shipped("trade").text]) == {}
        assert own_models(archive.catalogue)[4711].version == 2
        register_models(archive, [TICK])
        assert own_models(archive.catalogue)[4711].version == 2
        newest = NEWER.replace("version = 2", "version = 3") + "# more\n"
        assert models_in_band(archive.catalogue, [newest]) == {"4711": newest}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (DOCUMENT.replace('"tick"', '"trade"'), "the table name 'trade' is already used"),
        (DOCUMENT.replace('"tick"', '"bar_time"'), "the table name 'bar_time' is already used"),
        (DOCUMENT.replace('"tick"', '"raw"'), "the table name 'raw' is already used"),
        (DOCUMENT.replace("4711", "2"), "its id 2 belongs to the shipped model 'trade'"),
        (DOCUMENT.replace('"i64"', '"i32"'), "type of field 'size' changed from i64 to i32"),
        (DOCUMENT.replace("4711", "4712"), "the table name 'tick' is already used"),
    ],
)
def test_models_that_cannot_have_a_table_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with Archive.writing(tmp_path / "archive") as archive:
        register_models(archive, [TICK])
        with pytest.raises(ConfigurationError, match=says):
            register_models(archive, [MessageModel.parse(text)])
        assert models_in_band(archive.catalogue, [text]) == {}
        assert archive.catalogue.number == 1


@pytest.mark.spec("PIPE-11")
def test_an_upgrade_reads_messages_of_a_newer_version_of_a_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ship(model: MessageModel) -> None:
        for module in (tables, models_module):
            monkeypatch.setattr(module, "shipped_models", lambda: {**SHIPPED, model.id: model})

    newer = MessageModel.parse(NEWER)
    write_ticks(tmp_path / "journal", model=newer)
    ship(TICK)
    with Archive.writing(tmp_path / "archive") as archive:
        append(archive, tmp_path / "journal")
        assert archive.catalogue.account.rows == {"raw": COUNT}, "version 1 would drop the new field"
        assert read_again(archive) is None
        ship(newer)
        assert read_again(archive) is not None
        assert archive.catalogue.account.rows == {"raw": 0, "tick": COUNT}
        assert {row["venue"] for row in pq.read_table(archive.paths("tick")).to_pylist()} == {"XNAS"}
