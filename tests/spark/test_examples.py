"""The examples run as they are."""

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.spec("PIPE-5")
def test_bars_and_markouts(spark: Any, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = runpy.run_path(str(project / "examples" / "bars_and_markouts.py"))
    assert made["spark"] is spark
    volume = made["trades"].where("action = 'trade'").selectExpr("sum(quantity)").first()[0]
    barred = made["bars"].selectExpr("sum(volume)").first()[0]
    assert 0 < barred <= volume
    assert made["spreads"].where("quoted_spread <= 0").isEmpty()
    assert made["markouts"].columns == ["symbol", "after_1_s", "after_10_s", "after_60_s"]
    assert "quoted_spread" in capsys.readouterr().out
