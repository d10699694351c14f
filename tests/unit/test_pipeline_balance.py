"""The balance of a run accounts for each message once."""

from pathlib import Path

import pytest

from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.spark.feedindex import plan_slices
from penstock.spark.feedslices import Conversion
from penstock.spark.pipeline.archive.archive import Archive
from penstock.spark.pipeline.runner import balance
from penstock.spark.pipeline.work import write_slice

ADD = b"A"
MESSAGES = 2_000


@pytest.mark.spec("PIPE-11")
def test_messages_about_orders_from_before_the_file_are_unmatched_and_not_quarantined(tmp_path: Path) -> None:
    day = tmp_path / "day.itch"
    kept = write_without_first_orders(day, 20)
    (piece,) = plan_slices(day, conversion=Conversion("itch", 1, "2024-01-02"))
    with Archive.writing(tmp_path / "archive") as archive:
        result = write_slice(archive.begin(), piece)
    source = result.account.source
    assert result.account.is_balanced
    assert source.taken == kept == source.used + sum(source.unmatched.values())
    assert source.unmatched["unknown_order"] > 0
    assert not source.quarantined
    assert "quarantine" not in {file.table for file in result.files}
    text = "\n".join(balance(result.account))
    assert f"{source.unmatched['unknown_order']:,} unmatched (unknown_order)" in text
    assert "quarantine" not in text


def write_without_first_orders(day: Path, left_out: int) -> int:
    """A generated day in which this many orders were added before the file begins; the number of its messages."""
    generator, count = ItchGenerator(GeneratorConfig(seed=3, symbols=5, messages=MESSAGES)), 0
    with day.open("wb") as file:
        while blocks := bytes(generator.blocks()):
            at = 0
            while at < len(blocks):
                end = at + 2 + int.from_bytes(blocks[at : at + 2], "big")
                if blocks[at + 2 : at + 3] == ADD and left_out:
                    left_out -= 1
                else:
                    count += 1
                    file.write(blocks[at:end])
                at = end
    return count
