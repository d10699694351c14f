"""The demo's summary counts correctly when the machine was too slow for the demo."""

from pathlib import Path

import msgspec
import pytest

from penstock.demo.consumers import Consumer, Published
from penstock.demo.layout import Layout
from penstock.demo.reports import ConsumerReport
from penstock.demo.verdicts import lower_rate

LAYOUT = Layout(Path("plant.toml"), "", [], [], [], "", {}, Path("audit"), Path("operations.toml"), "", [])


def consumer(name: str, messages: int, versions: int, newest: int = 0) -> Consumer:
    made = Consumer(name, LAYOUT)
    made.take(
        msgspec.json.encode(
            ConsumerReport(at_ns=1, messages=messages, merged=0, lost=0, items=3, versions=versions, newest=newest)
        )
    )
    return made


def told(made: Consumer, count: int, *, is_whole: bool, newest: int = 0) -> str:
    counts = {made.model: count}
    return made.line(Published(counts, {made.model: newest}, is_whole), 1.0)


@pytest.mark.parametrize(
    ("messages", "is_whole", "what"),
    [
        (100, True, "every one, once"),
        (90, True, "10 missing"),
        (103, True, "3 more than published"),
        (103, False, "no subscriber received everything for comparison"),
    ],
)
def test_no_rate_is_compared_with_a_consumer_that_lacks_messages(messages: int, is_whole: bool, what: str) -> None:
    line = told(consumer("algorithm", messages, messages), 100, is_whole=is_whole)
    assert what in line
    assert "-" not in line.replace("ticker-plant", "")


def test_the_last_messages_either_arrived_or_are_reported_lost() -> None:
    assert "and the last update of each item arrived;" in told(consumer("screen", 10, 100), 100, is_whole=True)
    late = told(consumer("screen", 10, 99), 100, is_whole=True)
    assert "the last updates of some items are missing" in late
    assert "the last update of each item arrived" not in late
    late = told(consumer("pricing", 10, 0, newest=5), 100, is_whole=False, newest=6)
    assert "but not the last ones" in late
    assert "always the newest" not in late


@pytest.mark.parametrize(
    ("rate", "share", "lower"), [(10_000, 1.0, 5_000), (10_000, 0.14, 700), (1, 0.0, 1), (200_000, 0.7, 70_000)]
)
def test_the_lower_bound_of_a_rate_is_a_round_number(rate: float, share: float, lower: int) -> None:
    assert lower_rate(rate, share) == lower
