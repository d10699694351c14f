"""The examples run as they are, and show what they say they show."""

import os
import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_SECONDS = 300


def test_a_trading_day(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "trading_day.py")]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    trades, quotes = re.findall(r"([\d,]+) (?:trades|quotes)", done.stdout)
    assert int(trades.replace(",", "")) > 1_000
    assert int(quotes.replace(",", "")) > 10_000
    for column in ("vwap", "median_bps", "effective_bps", "markout_1s_bps"):
        assert column in done.stdout
    assert not list(tmp_path.glob("penstock-example-*"))
