"""The console's history of nodes: bounded, summarised, and unknown where nothing was known."""

from typing import Any

import pytest

from penstock.base.errors import NotFoundError
from penstock.top.core.picture import State
from penstock.web.core.history import NODES_MAX, POINTS_MAX, SAMPLES_MAX, History
from penstock.web.core.picture import PictureDocument, ShownNode

BEGIN_MS = 1_794_779_400_000.0


def picture(second: float, *nodes: ShownNode) -> PictureDocument:
    return PictureDocument(
        number=1, plant="trial", time_ms=BEGIN_MS + 1_000 * second, age_s=0.0, interval_s=1.0, is_well=True,
        nodes=list(nodes), links=[], streams=[], losses=[], consumers=[], endpoints=[], counts={},
    )  # fmt: skip


def node(name: str = "a", **values: Any) -> ShownNode:
    return ShownNode(**{"node": name, "role": "plant", "state": State.UP, "detail": "", **values})


def test_samples_come_back_in_order_with_their_times() -> None:
    history = History()
    for second in range(5):
        latency = {"p50": 10.0 + second, "p99": 100.0 + second}
        history.take(picture(second, node(in_per_s=second, out_per_s=2 * second, latency_us=latency)))
    found = history.read("a", 3)
    assert found.time_ms == [BEGIN_MS + 1_000 * second for second in (2, 3, 4)]
    assert found.in_per_s == [2, 3, 4]
    assert found.out_per_s == [4, 6, 8]
    assert found.p50_us == [12, 13, 14]
    assert found.p99_us == [102, 103, 104]
    assert (found.from_ms, found.to_ms) == (BEGIN_MS + 1_000, BEGIN_MS + 4_000)


def test_losses_are_those_of_each_point_also_after_a_restart() -> None:
    history = History()
    for second, lost in enumerate([5, 5, 8, None, 9, 2, 2]):
        history.take(picture(second, node(lost=lost)))
    assert history.read("a", 60).lost == [None, 0, 3, None, 1, 2, 0]


def test_what_is_unknown_is_not_zero() -> None:
    history = History()
    history.take(picture(0, node(in_per_s=7.0)))
    history.take(picture(1, node(in_per_s=7.0, age_s=3.0)))  # the node does not answer
    history.take(picture(2))
    history.take(picture(3, node(in_per_s=float("inf"))))
    assert history.read("a", 60).in_per_s == [7, None, None, None]


def test_many_samples_are_summarised_and_old_ones_are_forgotten() -> None:
    history = History()
    count = SAMPLES_MAX + 500
    for second in range(count):
        latency = {"p99": float(second)}
        history.take(picture(second, node(in_per_s=10.0, lost=3 * second, latency_us=latency)))
    found = history.read("a", 86_400)
    assert len(found.time_ms) <= POINTS_MAX
    assert found.time_ms == sorted(found.time_ms)
    assert found.time_ms[-1] == BEGIN_MS + 1_000 * (count - 1)
    assert found.time_ms[0] > BEGIN_MS + 1_000 * 500
    assert set(found.in_per_s) == {10.0}
    assert found.p99_us[-1] == count - 1
    assert sum(each or 0 for each in found.lost) == 3 * (SAMPLES_MAX - 1)


def test_nodes_are_bounded_and_unknown_ones_refused() -> None:
    history = History()
    for part in range(2):
        history.take(picture(part, *(node(f"{part}-{number}") for number in range(NODES_MAX))))
    assert history.read("0-0", 60).in_per_s == [None, None]
    for name in ("1-0", "", "x" * 10_000):
        with pytest.raises(NotFoundError):
            history.read(name, 60)
