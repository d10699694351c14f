"""A message router under every fault of machine, process, disk and links (REPL-1, REPL-10, REPL-12), and a checker that
must detect broken promises."""

from collections.abc import Callable
from typing import Any

import numpy
import pytest

import penstock.assured.core.router.router as core
import penstock.assured.core.router.transactions as transactions
import penstock.sim.assured.plant as assured
from penstock.assured.core.router.endpoints import Endpoints
from penstock.assured.core.router.events import Append, Event, Instruction, RemoveBefore, SendData
from penstock.assured.core.router.links import Links
from penstock.assured.core.router.log import Log
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.core.router.transactions import Transactions
from penstock.assured.wire._layout import DELIVERY_REDELIVERED
from penstock.assured.wire.frames import Deliver, Delivered, decode_frames, encode_deliver
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.sim.assured.plant import run_assured_seed

SEEDS = 75
SEEDS_PER_TEST = 15
SOAK_SEEDS = 3_000
SABOTAGE_SEEDS = 60
NOTICED = r"AssuredChecker: |does not settle|got \d+ after|has \d+ messages|of a router without messages"
"""Errors that the checkers raise; any other error would be a side effect of the sabotage."""


def run_seeds(seeds: range, seconds: float = 1.0) -> None:
    for seed in seeds:
        run_assured_seed(seed, seconds=seconds)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_acknowledged_messages_are_delivered_under_every_fault(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 50))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 50), seconds=5)


def test_a_run_with_a_backlog_may_settle_as_long_as_the_backlog_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this plant the publishers send five times as many messages as the only consumers can take."""
    monkeypatch.setattr(assured, "SETTLING_ROUNDS", 4)
    monkeypatch.setattr(assured, "SETTLED_MIN", 50)
    summary = run_assured_seed(700, seconds=1.0)
    assert summary.virtual_seconds > 1.0 + 2 * 4 * assured.SETTLING_NS / NS_PER_SECOND
    monkeypatch.setattr(assured, "SETTLED_MIN", 2_000)
    with pytest.raises(SimulationError, match="does not settle"):
        run_assured_seed(700, seconds=1.0)


def test_a_seed_replays_exactly() -> None:
    assert run_assured_seed(5, seconds=0.5) == run_assured_seed(5, seconds=0.5)
    assert run_assured_seed(5, seconds=0.5).digest != run_assured_seed(6, seconds=0.5).digest


def test_the_seeds_cover_every_kind_of_fault() -> None:
    summaries = [run_assured_seed(seed, seconds=1.0) for seed in range(16)]
    for name in (
        "redelivered",
        "committed",
        "rolled_back",
        "given_up",
        "moved",
        "fetched",
        "sections_removed",
        "crashes",
        "kills",
        "cuts",
        "full_disks",
        "writes_torn",
    ):
        assert sum(getattr(each, name) for each in summaries) > 0, name


# Each sabotage breaks one promise of the product; the checker must detect the sabotage from outside.


def acknowledge_before_the_disk_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MessageRouter.handle

    def broken(self: MessageRouter, event: Event, now_ns: int) -> list[Instruction]:
        found = original(self, event, now_ns)
        for each in found:
            if isinstance(each, Append) and self.is_active:
                core.stored(self.tables, each.through)
        return found

    monkeypatch.setattr(MessageRouter, "handle", broken)


def forget_to_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MessageRouter.handle

    def broken(self: MessageRouter, event: Event, now_ns: int) -> list[Instruction]:
        return [_unflagged(each) for each in original(self, event, now_ns)]

    monkeypatch.setattr(MessageRouter, "handle", broken)


def _unflagged(instruction: Instruction) -> Instruction:
    return _delivering(instruction, lambda message: message._replace(flags=message.flags & ~DELIVERY_REDELIVERED))


def _delivering(instruction: Instruction, change: Callable[[Delivered], Delivered]) -> Instruction:
    if not isinstance(instruction, SendData) or instruction.data[4] != 3:
        return instruction
    frames = [frame for frame in decode_frames(instruction.data) if isinstance(frame, Deliver)]
    data = [encode_deliver(each.flow, [change(message) for message in each.messages]) for each in frames]
    return SendData(instruction.link, b"".join(data))


def forget_who_gave_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MessageRouter.handle

    def broken(self: MessageRouter, event: Event, now_ns: int) -> list[Instruction]:
        return [_delivering(each, lambda one: one._replace(given_up_by=0)) for each in original(self, event, now_ns)]

    monkeypatch.setattr(MessageRouter, "handle", broken)


def clean_what_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Log.stored

    def broken(self: Log, through: int) -> list[Instruction]:
        found = original(self, through)
        return found + [RemoveBefore(through) for each in found if isinstance(each, RemoveBefore)]

    monkeypatch.setattr(Log, "stored", broken)


def keep_what_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Transactions, transaction: Any) -> None:
        self._log(transaction)

    monkeypatch.setattr(Transactions, "_roll_back", broken)


def hold_what_is_rolled_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transactions, "_return", lambda _self, _endpoint, _ids: None)


def commit_without_what_was_consumed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = transactions.settle

    def broken(tables: Any, endpoint: int, ids: Any, whats: Any) -> None:
        original(tables, endpoint, ids, numpy.full(len(ids), 2, numpy.uint8))

    monkeypatch.setattr(transactions, "settle", broken)


def always_say_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Transactions._state

    def broken(self: Transactions, link: Any, handle: int) -> tuple[int, int, int, int]:
        publisher, highest, _, treatment = original(self, link, handle)
        return publisher, highest, 2**32, treatment

    def begin(self: Transactions, link: Any, handle: int, number: int, now_ns: int) -> None:
        monkeypatch.setattr(Transactions, "_state", original)
        original_begin(self, link, handle, number, now_ns)
        monkeypatch.setattr(Transactions, "_state", broken)

    original_begin = Transactions.begin
    monkeypatch.setattr(Transactions, "begin", begin)
    monkeypatch.setattr(Transactions, "_state", broken)


def lose_a_crowd_of_messages_with_their_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in flight stay with a flow that no consumer has."""
    monkeypatch.setattr(Links, "close_flow", lambda _self, link, handle: link.flows.pop(handle) and [])


def let_queues_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Endpoints.apply

    def broken(self: Endpoints, endpoint: Any) -> None:
        original(self, endpoint)
        if endpoint.name == "small":
            self._tables.set_endpoint(
                endpoint.number,
                is_exclusive=False,
                gives_up_when_full=False,
                treatment=0,
                dead_to=0,
                deliveries_max=0,
                messages_max=10**6,
                bytes_max=10**9,
                age_ns_max=0,
                live_from=0,
            )

    monkeypatch.setattr(Endpoints, "apply", broken)


def never_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Log, "clean", lambda _self: [])


SABOTAGES = [
    acknowledge_before_the_disk_has_it,
    forget_to_flag,
    forget_who_gave_it_up,
    clean_what_is_alive,
    keep_what_is_rolled_back,
    hold_what_is_rolled_back,
    commit_without_what_was_consumed,
    always_say_committed,
    lose_a_crowd_of_messages_with_their_link,
    let_queues_grow,
    never_clean,
]


@pytest.mark.parametrize("sabotage", SABOTAGES)
def test_a_broken_router_is_detected(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError, match=NOTICED):
        run_seeds(range(SABOTAGE_SEEDS))
