"""Two message routers under crashes, partitions and switches; checkers that must detect broken promises (REPL-2 to 10,
REPL-14)."""

from typing import Any

import pytest

from penstock.assured.core.pair import replication_receiver
from penstock.assured.core.pair._receiving import resolve
from penstock.assured.core.pair.degradation import Degradation
from penstock.assured.core.pair.pair import Pair
from penstock.assured.core.pair.replication_receiver import ReplicationReceiver
from penstock.assured.core.pair.replication_sender import ReplicationSender
from penstock.assured.core.pair.transaction_stream import HeldTransactions
from penstock.assured.core.router import transactions
from penstock.assured.core.router._settling import settle
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.router import EVERY_ID
from penstock.base.errors import SimulationError
from penstock.sim.replicated.plant import run_replicated_seed

SEEDS = 16
SEEDS_PER_TEST = 4
SOAK_SEEDS = 1_000
SABOTAGE_SEEDS = 60


def run_seeds(seeds: range, seconds: float = 3.0) -> None:
    for seed in seeds:
        run_replicated_seed(seed, seconds=seconds)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_messages_acknowledged_as_synchronous_survive_every_switch(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 20))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 20), seconds=6)


def test_a_seed_replays_exactly() -> None:
    assert run_replicated_seed(5, seconds=1) == run_replicated_seed(5, seconds=1)


# Each sabotage breaks one promise of the product; the checkers must detect the sabotage from outside.


def go_on_without_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pair, "_stand_by", lambda self, now_ns, why: None)


def acknowledge_before_the_other_router_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pump = ReplicationSender.pump

    def hasty(self: ReplicationSender, now_ns: int, *, is_hurried: bool) -> Any:
        told = pump(self, now_ns, is_hurried=is_hurried)
        self.through_id = EVERY_ID
        return told

    monkeypatch.setattr(ReplicationSender, "pump", hasty)


def say_stored_on_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    records = ReplicationReceiver.records

    def hasty(self: ReplicationReceiver, data: bytes) -> None:
        records(self, data)
        self.stored(EVERY_ID)

    monkeypatch.setattr(ReplicationReceiver, "records", hasty)


def degrade_without_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    look = Degradation.look

    def hasty(self: Degradation, sending: ReplicationSender | None, now_ns: int, *, is_switching: bool) -> bool | None:
        is_degraded = look(self, sending, now_ns, is_switching=is_switching)
        if self.mode == "degrading":
            self.mode = "degraded"
        return None if is_degraded else is_degraded

    monkeypatch.setattr(Degradation, "look", hasty)


def let_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that a transaction consumes are settled before the transaction commits."""

    def hasty(tables: Tables, _: int, endpoint: int, ids: Any, whats: Any) -> None:
        settle(tables, endpoint, ids, whats)

    monkeypatch.setattr(transactions, "consume", hasty)


def undo_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_receiver, "resolve", lambda tables, _: resolve(tables, EVERY_ID))


def mix_up_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    together = HeldTransactions.together

    def careless(self: HeldTransactions, frame: bytes) -> None:
        together(self, frame[:8] + frame[9:] + b"!")

    monkeypatch.setattr(HeldTransactions, "together", careless)


SABOTAGE = [
    (mix_up_what_is_held, 0),
    (let_go_at_once, 20),
    (undo_nothing, 20),
    (go_on_without_the_lease, 0),
    (acknowledge_before_the_other_router_has_it, 0),
    (say_stored_on_receipt, 40),
    (degrade_without_a_note, 5),
]
"""Each sabotage with its first seed, which is shortly before the seed that detects the sabotage."""


@pytest.mark.parametrize(("sabotage", "first"), SABOTAGE, ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_pair_is_detected(sabotage: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError, match="ReplicatedChecker"):
        run_seeds(range(first, SABOTAGE_SEEDS), seconds=3)
