"""`penstock demo` with the pipeline behind the plant: every published message is archived once, and audited."""

import html
import re
from pathlib import Path

import pyarrow.dataset
import pytest

from integration.command_kit import command_line_of, descendants_of, is_alive, kill, running
from waiting import wait_until

QUICK = ("--spark", "--no-critical-path", "--rate", "1000", "--symbols", "50")
ARCHIVED = ("trade", "quote", "book_event", "status", "day_statistics")
SPARK_SECONDS = 240.0
"""Spark is slow to start on a busy machine."""


@pytest.mark.soak
@pytest.mark.spec("PIPE-5", "PIPE-7")
def test_archived_messages_equal_received_ones_although_the_active_adapter_is_killed(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    kept = ("--keep", str(tmp_path), "--report", str(page))
    with running("demo", "--seconds", "5", "--kill-active", *kept, *QUICK) as demo:
        wait_until(lambda: demo.process.poll() is not None, "the end of the demo", SPARK_SECONDS)
        assert demo.end() == 0, demo.out + demo.err
        out, err = demo.out, demo.err
    found = re.search(r"the adapters made ([\d,]+)\.", out)
    assert found, out + err
    numbers = [
        number
        for table in ARCHIVED
        for number in pyarrow.dataset.dataset(tmp_path / "archive" / table).to_table(columns=["seq"])["seq"].to_pylist()
    ]
    assert sorted(numbers) == list(range(1, int(found[1].replace(",", "")) + 1))
    assert "the audit found nothing missing" in out
    told = html.unescape(re.sub("<[^>]+>", "", page.read_text(encoding="utf-8")))
    assert "minute bars with the most volume" in told
    assert re.search(r"Filter modules: 1 module received .* every number is accounted for *$", told, re.MULTILINE), told
    assert "<html" in (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert "Traceback" not in err


def test_a_demo_that_is_killed_leaves_no_spark_behind() -> None:
    with running("demo", *QUICK) as demo:
        demo.wait_for_match(r"exchange [1-9][\d,]* sent", SPARK_SECONDS)
        wait_until(lambda: any("java" in command_line_of(pid) for pid in descendants_of(demo.pid)), "Spark's Java")
        processes = descendants_of(demo.pid)
        kill(demo.pid)
        wait_until(lambda: not any(map(is_alive, processes)), "the end of all processes")
