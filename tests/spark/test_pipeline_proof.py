"""From a capture of two adapters to the archive, and from the archive to the audit and to a replay."""

from pathlib import Path
from typing import Any

import pytest

from penstock.spark.journals import JournalPlace
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.audit import SECTIONS, run_audit
from penstock.spark.pipeline.playing import Chosen
from penstock.spark.pipeline.recordings import plays_of_archive
from penstock.spark.pipeline.runner import run
from penstock.spark.pipeline.sources.capture import JournalSource
from penstock.wire import Extension, Origin, OriginFlag, Packer, encode_extensions, encode_origin
from spark.pipeline_kit import GROUP, LOST, TERM, Silent, capture_of, converted, version_of, write_journal
from unit.recordings_kit import Published, published

CHECKED = [section for section in SECTIONS if section.name in ("delivery", "agreement", "balance")]


def strange_packets(messages: list[tuple[str, Origin, int, bytes]]) -> list[bytes]:
    """Packets of the second adapter from before it was synchronised: other contents under numbers in use."""
    packer, made = Packer(3, GROUP, 1), []
    for topic, origin, model, record in messages[:50]:
        for flags in (0, int(OriginFlag.SYNCHRONISED | OriginFlag.IMAGE)):
            said = encode_extensions({Extension.ORIGIN: encode_origin(origin._replace(term=TERM, flags=flags))})
            made += packer.add(topic, record[::-1], extensions=said, model_id=model, model_version=1)
    rest = packer.flush()
    return [*made, rest] if rest is not None else made


@pytest.mark.spec("PIPE-7", "PIPE-9", "SYNC-2")
def test_a_day_is_audited_and_replayed(spark: Any, tmp_path: Path) -> None:
    messages = converted(4_000)
    days = {
        "good": [*strange_packets(messages), *capture_of(messages)],
        "bad": [LOST, *capture_of(messages, corrupt=3_000)],
    }
    verdicts, archives = {}, {}
    for name, records in days.items():
        write_journal(tmp_path / f"{name}.journal", records)
        with Archive.writing(tmp_path / name) as archive:
            run(spark, archive, [JournalSource(JournalPlace(str(tmp_path / f"{name}.journal")))], (), Silent(), cores=1)
        archives[name] = Archive.open(tmp_path / name)
        report = run_audit(archives[name], spark, sections=CHECKED)
        verdicts[name] = {section.name: found.verdict for section, found in report.sections}
        facts = {(m.section, m.name): m.value for _, found in report.sections for m in found.measures}
        assert facts["agreement", "disagreed"] == (name == "bad"), name
        assert facts["agreement", "agreed"] > 2, name
    assert verdicts["good"] == {"delivery": "good", "agreement": "good", "balance": "good"}
    assert verdicts["bad"] == {"delivery": "bad", "agreement": "bad", "balance": "good"}

    played = [
        message
        for play in plays_of_archive(archives["good"], Chosen())
        for message in published(play.topic_data, play.payloads, play.rows)
    ]
    expected = [
        Published(topic, model, version_of(model), _origin(origin), record) for topic, origin, model, record in messages
    ]  # fmt: skip
    assert played == expected


def _origin(origin: Origin) -> bytes:
    told = origin._replace(term=TERM, flags=int(OriginFlag.SYNCHRONISED))
    return encode_extensions({Extension.ORIGIN: encode_origin(told)})
