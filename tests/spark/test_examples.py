"""The examples run unchanged, with the results that they describe."""

import re
import runpy
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_trading_day(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the existing session, which other tests still need."""
    monkeypatch.setattr(SparkSession, "stop", lambda self: None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["trading_day.py"])
    runpy.run_path(str(EXAMPLES / "trading_day.py"))
    shown = capsys.readouterr().out
    trades, quotes = re.findall(r"([\d,]+) (?:trades|quotes)", shown)
    assert int(trades.replace(",", "")) > 1_000
    assert int(quotes.replace(",", "")) > 10_000
    for column in ("vwap", "median_bps", "effective_bps", "markout_1s_bps"):
        assert column in shown
    assert not list(tmp_path.glob("penstock-example-*"))
