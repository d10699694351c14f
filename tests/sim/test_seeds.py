"""Whole plants under every fault, and checkers that do notice."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.base.counters import Cause
from penstock.base.errors import SimulationError
from penstock.middleware import Deliver, LossReceipt, StreamEnded
from penstock.middleware.receiver import Receiver
from penstock.middleware.stream import IncomingStream
from penstock.sim import MiddlewarePlant, PlantOptions, World, run_seed
from penstock.wire import Packet

SEEDS = 60
SEEDS_PER_TEST = 6
SOAK_SEEDS = 3_000


def run_seeds(seeds: range) -> None:
    for seed in seeds:
        run_seed(seed, seconds=4)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_message_once_and_in_order_or_reported_lost(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 60))
def test_many_more_seeds(first: int) -> None:
    for seed in range(first, first + 60):
        run_seed(seed, seconds=15)


def test_a_seed_replays_exactly() -> None:
    assert run_seed(11, seconds=3) == run_seed(11, seconds=3)
    assert run_seed(11, seconds=3).digest != run_seed(12, seconds=3).digest


def test_the_seeds_reach_every_kind_of_trouble() -> None:
    """A simulator that never loses or crashes anything proves nothing."""
    summaries = [run_seed(seed, seconds=4) for seed in range(12)]
    for name in ("datagrams_lost", "nacks_sent", "repairs_sent", "packets_reported_lost", "crashes"):
        assert sum(getattr(each, name) for each in summaries) > 0, name


# Each of these breaks one promise in the product; a checker must see it from outside.


def deliver_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IncomingStream._deliver

    def broken(self: IncomingStream, packet: Packet) -> Iterator[Any]:
        for answer in original(self, packet):
            yield answer
            if isinstance(answer, Deliver) and answer.sequence % 50 == 0:
                yield answer

    monkeypatch.setattr(IncomingStream, "_deliver", broken)


def forget_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IncomingStream._deliver

    def broken(self: IncomingStream, packet: Packet) -> Iterator[Any]:
        for answer in original(self, packet):
            if isinstance(answer, Deliver) and answer.sequence % 50 == 0:
                answer = Deliver(answer.stream, answer.epoch, answer.first, answer.sequence, answer.flags, [])
            yield answer

    monkeypatch.setattr(IncomingStream, "_deliver", broken)


def lose_without_a_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IncomingStream._skip
    monkeypatch.setattr(
        IncomingStream,
        "_skip",
        lambda self, gap: (each for each in original(self, gap) if not isinstance(each, LossReceipt)),
    )


def never_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiver, "_request_repairs", lambda self, now_ns: [])
    monkeypatch.setattr(Receiver, "next_deadline_ns", lambda self: self._expiry_check_ns)


def forget_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receiver._end

    def broken(self: Receiver, stream: IncomingStream, cause: Cause) -> list[Any]:
        answers = original(self, stream, cause)
        self._positions.clear()
        return answers

    monkeypatch.setattr(Receiver, "_end", broken)


def end_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receiver._end

    def broken(self: Receiver, stream: IncomingStream, cause: Cause) -> list[Any]:
        *answers, ended = original(self, stream, cause)
        return [*answers, StreamEnded(ended.stream, ended.epoch, ended.next_sequence + 1, cause)]

    monkeypatch.setattr(Receiver, "_end", broken)


@pytest.mark.parametrize(
    "sabotage",
    [deliver_twice, forget_a_message, lose_without_a_receipt, never_ask, forget_positions, end_too_early],
)
def test_the_checkers_notice(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        run_seeds(range(30))
    assert "Checker" in caught.value.what
    assert "penstock sim --seed" in caught.value.hint


def test_a_quiet_network_needs_no_repair() -> None:
    plant = MiddlewarePlant(World(5), PlantOptions())
    plant.start()
    plant.run(5_000_000_000)
    plant.finish()
    summary = plant.summary()
    assert summary.messages_delivered == len(plant.receivers) * summary.messages_published
    assert (summary.repairs_sent, summary.packets_reported_lost) == (0, 0)
