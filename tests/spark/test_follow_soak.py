"""A capture of five minutes, followed into an archive; `make soak ARGS="-rP -k follower_keeps"` shows the figures."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.bench.pipeline.follow import follow_capture
from penstock.spark.pipeline.archive.archive import Archive

RATE = 300_000
SECONDS = float(os.environ.get("PENSTOCK_FOLLOW_SECONDS", "300"))
GROWTH_MB_MAX = {"driver": 64, "jvm": 512, "workers": 128}
"""From the second third of the steps to the last. The JVM uses its whole heap before it collects garbage; a byte for
every message would be 30 MB, a record 9 GB."""


@pytest.mark.soak
@pytest.mark.spec("PIPE-1", "PIPE-6")
def test_a_follower_keeps_up_with_bounded_memory(
    spark: Any, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    followed = follow_capture(spark, tmp_path, RATE, SECONDS)
    middle_s, last_s = followed.delays_s()
    figures = {
        "messages_per_s": round(followed.per_s),
        "delay_s": {"middle third": round(middle_s, 2), "last third": round(last_s, 2)},
        "memory_mb": {kind: round(max(found)) for kind, found in followed.memory_mb.items()},
        "growth_mb": {kind: round(followed.growth_mb(kind)) for kind in followed.memory_mb},
    }
    for name, value in figures.items():
        record_property(name, value)
        sys.stdout.write(f"{name}: {value}\n")
    account = Archive.open(tmp_path / "follower").catalogue.account
    assert account.is_balanced
    assert followed.report.account.rows == {"trade": followed.captured}, "every message once"
    assert last_s <= 1.5 * middle_s + 1, f"it falls behind: {figures}"
    for kind, most in GROWTH_MB_MAX.items():
        assert min(followed.memory_mb[kind]) > 0, f"{kind} was never seen"
        assert followed.growth_mb(kind) <= most, figures
