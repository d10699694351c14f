"""The lease by hand: what a voter grants and stores, and when a router holds the lease (REPL-14)."""

from typing import Any

import pytest

from penstock.assured.core.lease.keeper import LeaseKeeper
from penstock.assured.core.lease.protocol import (
    Able,
    Ask,
    DegradedNoted,
    Denied,
    Fit,
    Force,
    Granted,
    Heard,
    Keep,
    Kept,
    LeaseAcquired,
    LeaseConfig,
    LeaseLost,
    Memory,
    NoteDegraded,
    Reached,
    Release,
    Released,
    Serving,
    Tell,
)
from penstock.assured.core.lease.voter import LeaseVoter
from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.base.errors import ConfigurationError

CONFIG = LeaseConfig(routers=("a", "b"), witness="w", lease_ms=1_000, drift_ppm=10_000)
LEASE_NS = CONFIG.promise_ns


class Even:
    def below(self, limit: int) -> int:
        return limit // 2


def granted(voter: LeaseVoter, name: str, ask: Ask, now_ns: int) -> bool:
    """Answers the voter's writes for the disk."""
    told = voter.handle(Heard(name, ask), now_ns)
    if isinstance(told[0], Keep):
        told = voter.handle(Kept(), now_ns)
    assert isinstance(told[0], Tell)
    return isinstance(told[0].message, Granted)


def test_a_voter_that_just_started_grants_only_to_the_last_holder_for_one_lease() -> None:
    voter = LeaseVoter(CONFIG, Memory(3, "a"), 0)
    assert voter.handle(Heard("b", Ask(4, 1)), LEASE_NS - 1) == [Tell("b", Denied(3, 1, "held"))]
    assert granted(voter, "a", Ask(3, 9), LEASE_NS - 1)
    assert not granted(voter, "b", Ask(4, 2), 2 * LEASE_NS - 2)
    assert granted(voter, "b", Ask(4, 3), 2 * LEASE_NS - 1)
    assert voter.memory == Memory(4, "b")


def test_a_voter_grants_only_when_its_promise_is_on_the_disk() -> None:
    voter = LeaseVoter(CONFIG, Memory(), -LEASE_NS)
    assert voter.handle(Heard("a", Ask(1, 1)), 0) == [Keep(Memory(1, "a"))]
    assert voter.handle(Heard("a", Ask(1, 2)), 1) == [Tell("a", Denied(0, 2, "busy"))]
    assert voter.handle(Kept(), 5) == [Tell("a", Granted(1, 1, 0, False))]
    assert voter.handle(Heard("a", Ask(1, 3)), 6) == [Tell("a", Granted(1, 3, 0, False))]


def test_only_the_first_router_starts_a_new_pair() -> None:
    voter = LeaseVoter(CONFIG, Memory(), -LEASE_NS)
    assert voter.handle(Heard("b", Ask(1, 1)), 0) == [Tell("b", Denied(0, 1, "first"))]
    assert voter.handle(Heard("x", Ask(1, 1)), 0) == []


def test_the_second_router_takes_over_from_the_very_first_epoch() -> None:
    """Having heard of the first router, it claims an epoch above the one it would claim for a new pair."""
    voter = LeaseVoter(CONFIG, Memory(1, "a"), 0)
    keeper = LeaseKeeper(CONFIG, "b", Memory(), Even(), 0)
    keeper.handle(Fit(True), 0)
    now_ns, held = 0, list[LeaseAcquired]()
    while not held and now_ns < 10 * LEASE_NS:
        now_ns = keeper.next_deadline_ns() or now_ns
        events = [Tick()]
        while events:
            for told in keeper.handle(events.pop(0), now_ns):
                match told:
                    case Tell("w", message):
                        answers = voter.handle(Heard("b", message), now_ns)
                        answers = voter.handle(Kept(), now_ns) if isinstance(answers[0], Keep) else answers
                        events += [Heard("w", each.message) for each in answers if isinstance(each, Tell)]
                    case Keep():
                        events.append(Kept())
                    case LeaseAcquired():
                        held.append(told)
    assert held == [LeaseAcquired(4)]


def test_a_voter_bound_to_a_lost_holder_is_asked_again_soon() -> None:
    """All voters become free at about the same time; failed requests have growing pauses."""
    keeper = LeaseKeeper(CONFIG, "b", Memory(4, "a"), Even(), 0)
    keeper.handle(Fit(True), 0)
    assert keeper.next_deadline_ns() == LEASE_NS, "its own voter is bound until then"
    now_ns, waits = LEASE_NS, []
    for number in range(1, 7):
        assert Tell("w", Ask(6, number)) in keeper.handle(Tick(), now_ns)
        assert keeper.handle(Heard("w", Denied(4, number, "held")), now_ns) == []
        later_ns = keeper.next_deadline_ns()
        assert later_ns is not None
        waits.append(later_ns - now_ns)
        now_ns = later_ns
    assert waits[0] < LEASE_NS / 16
    assert waits[:4] == [waits[0] << number for number in range(4)]
    assert waits[4] == waits[5] == LEASE_NS // 3 + LEASE_NS // 3 // 2, "as often as without an answer"


def test_a_restarted_holder_asks_as_soon_as_it_reaches_a_voter_and_regains_the_lease() -> None:
    """Its first request was dropped, because no voter was connected; the voters are still bound to it."""
    keeper = LeaseKeeper(CONFIG, "a", Memory(3, "a"), Even(), 0)
    voter = LeaseVoter(CONFIG, Memory(3, "a"), 0)
    assert Tell("w", Ask(5, 1)) in keeper.handle(Fit(True), 0)
    again = keeper.handle(Reached("w"), 1)
    assert Tell("w", Ask(5, 2)) in again
    assert granted(voter, "a", Ask(5, 2), 1)
    assert keeper.handle(Heard("w", Granted(5, 2, 0, False)), 2) == [Keep(Memory(5, "a"))]
    assert LeaseAcquired(5) in keeper.handle(Kept(), 3)


def test_an_unfit_router_sends_no_request_to_voters_that_it_reaches() -> None:
    keeper = LeaseKeeper(CONFIG, "a", Memory(3, "a"), Even(), 0)
    assert keeper.handle(Reached("w"), 1) == []
    bound = LeaseKeeper(CONFIG, "b", Memory(3, "a"), Even(), 0)
    bound.handle(Fit(True), 0)
    assert bound.handle(Reached("w"), 1) == [], "its own voter is bound to the other router"


def test_a_late_note_changes_nothing() -> None:
    voter = LeaseVoter(CONFIG, Memory(2, "a"), 0)
    assert granted(voter, "a", Ask(2, 3, note=3, is_degraded=True), 1)
    assert granted(voter, "a", Ask(2, 2, note=2, is_degraded=False), 2)
    assert voter.memory == Memory(2, "a", "a", 3)
    assert not granted(voter, "b", Ask(3, 1), 3 * LEASE_NS)
    assert granted(voter, "b", Ask(3, 2, is_forced=True), 3 * LEASE_NS)
    assert voter.memory.degraded == "a", "a claim does not withdraw a degradation"
    assert granted(voter, "b", Ask(3, 3, note=1, is_forced=True), 3 * LEASE_NS)
    assert voter.memory == Memory(3, "b", "", 1)


def holder(now_ns: int = 0) -> LeaseKeeper:
    """Router a with epoch 5, requested at `now_ns`."""
    keeper = LeaseKeeper(CONFIG, "a", Memory(4, "a"), Even(), now_ns)
    told = keeper.handle(Fit(True), now_ns)
    assert told == [Tell("b", Ask(5, 1)), Tell("w", Ask(5, 1))]
    assert keeper.handle(Heard("w", Granted(5, 1, 0, False)), now_ns + 20) == [Keep(Memory(5, "a"))]
    told = keeper.handle(Kept(), now_ns + 30)
    assert told[:2] == [LeaseAcquired(5), DegradedNoted(5, False)]
    return keeper


def test_a_holder_counts_from_its_request_and_for_less_than_the_promise() -> None:
    keeper = holder()
    assert keeper.until_ns == CONFIG.holding_ns < LEASE_NS
    assert keeper.holds(CONFIG.holding_ns - 1)
    assert not keeper.holds(CONFIG.holding_ns), "also without a Tick"
    assert LeaseLost(5) in keeper.handle(Tick(), CONFIG.holding_ns)


def test_a_router_that_lost_the_lease_returns_with_another_epoch() -> None:
    keeper = holder()
    keeper.handle(Tick(), CONFIG.holding_ns)
    late = keeper.handle(Heard("w", Granted(5, 2, 0, False)), CONFIG.holding_ns + 1)
    assert LeaseAcquired(5) not in late
    deadline_ns = keeper.next_deadline_ns()
    assert deadline_ns is not None
    asked = keeper.handle(Tick(), deadline_ns)
    assert [each.message.epoch for each in asked if isinstance(each, Tell) and isinstance(each.message, Ask)] == [7, 7]


@pytest.mark.spec("REPL-10", "REPL-14")
@pytest.mark.parametrize("is_granted", [False, True])
def test_a_router_that_became_unfit_ignores_grants_of_earlier_requests(is_granted: bool) -> None:
    """The router has started to catch up with the other one, and may have half of a transaction."""
    keeper = LeaseKeeper(CONFIG, "a", Memory(4, "a"), Even(), 0)
    assert Tell("w", Ask(5, 1)) in keeper.handle(Fit(True), 0)
    vote = Heard("w", Granted(5, 1, 0, False))
    if is_granted:
        assert keeper.handle(vote, 10) == [Keep(Memory(5, "a"))]
    assert keeper.handle(Fit(False), 20) == []
    assert keeper.handle(Kept() if is_granted else vote, 30) == []
    assert not keeper.holds(30)
    assert keeper.next_deadline_ns() is None
    later_ns = 2 * LEASE_NS
    asked = keeper.handle(Fit(True), later_ns)
    assert [each.message.round for each in asked if isinstance(each, Tell) and isinstance(each.message, Ask)] == [2, 2]
    assert keeper.handle(vote, later_ns + 1) == [], "the vote is for the earlier request"


@pytest.mark.spec("REPL-14")
def test_a_forced_request_is_sent_by_an_unfit_router() -> None:
    keeper = LeaseKeeper(CONFIG, "a", Memory(4, "a"), Even(), 0)
    assert Tell("w", Ask(5, 1, is_forced=True)) in keeper.handle(Force(), 0)
    keeper.handle(Fit(False), 10)
    assert keeper.handle(Heard("w", Granted(5, 1, 0, False)), 20) == [Keep(Memory(5, "a"))]
    assert LeaseAcquired(5) in keeper.handle(Kept(), 30)


def test_a_degradation_is_recorded_when_two_voters_have_it_on_their_disks() -> None:
    keeper = holder()
    told = keeper.handle(NoteDegraded(True), NS_PER_MS)
    assert Keep(Memory(5, "a", "a", 1)) in told
    assert keeper.handle(Kept(), 2 * NS_PER_MS) == []
    assert keeper.handle(Heard("w", Granted(5, 2, 0, False)), 3 * NS_PER_MS) == [], "an older round"
    assert keeper.handle(Heard("b", Granted(5, 3, 1, True)), 3 * NS_PER_MS) == [DegradedNoted(5, True)]


def test_a_released_lease_is_free_at_once_and_not_requested_again_for_two_leases() -> None:
    keeper = holder()
    told = keeper.handle(Release(), 50)
    assert told == [LeaseLost(5), Tell("b", Released(5)), Tell("w", Released(5))]
    assert keeper.next_deadline_ns() == 50 + 2 * LEASE_NS
    answer = keeper.handle(Heard("b", Ask(7, 1)), 60)
    assert answer == [Keep(Memory(7, "b"))]


def test_a_released_lease_is_requested_by_the_other_router_at_once() -> None:
    keeper = LeaseKeeper(CONFIG, "b", Memory(5, "a"), Even(), -LEASE_NS)
    keeper.handle(Fit(True), 0)
    assert [each.message for each in keeper.handle(Tick(), LEASE_NS) if isinstance(each, Tell)]
    keeper.handle(Heard("a", Ask(7, 1)), LEASE_NS + 1)
    keeper.handle(Kept(), LEASE_NS + 2)
    assert (keeper.next_deadline_ns() or 0) > LEASE_NS + 10
    told = keeper.handle(Heard("a", Released(7)), LEASE_NS + 10)
    assert [each.to for each in told if isinstance(each, Tell) and isinstance(each.message, Ask)] == ["a", "w"]


def test_a_router_with_a_failed_disk_releases_the_lease_and_requests_it_only_after_recovery() -> None:
    keeper = holder()
    assert keeper.handle(Able(False), 50) == [LeaseLost(5), Tell("b", Released(5)), Tell("w", Released(5))]
    for each in (Tick(), Force()):
        assert keeper.handle(each, 3 * LEASE_NS) == []
        assert keeper.next_deadline_ns() is None
    asked = keeper.handle(Able(True), 6 * LEASE_NS)
    assert [(each.to, each.message.epoch) for each in asked if isinstance(each, Tell)] == [("b", 7), ("w", 7)]


def test_a_degraded_router_keeps_the_lease_with_a_failed_disk() -> None:
    keeper = holder()
    keeper.handle(NoteDegraded(True), NS_PER_MS)
    assert keeper.handle(Able(False), 2 * NS_PER_MS) == []
    assert keeper.holds(2 * NS_PER_MS)


def test_a_holder_that_does_not_become_active_within_a_lease_releases_it() -> None:
    """For example, its disk neither stores the new epoch nor reports an error."""

    def renewed(keeper: LeaseKeeper, now_ns: int) -> None:
        asked = [each.message for each in keeper.handle(Tick(), now_ns) if isinstance(each, Tell)]
        assert isinstance(asked[0], Ask)
        keeper.handle(Heard("w", Granted(5, asked[0].round, 0, False)), now_ns)

    keeper = holder()
    assert keeper.handle(Serving(False), 100) == []
    renewed(keeper, LEASE_NS // 2)
    assert LeaseLost(5) not in keeper.handle(Serving(False), LEASE_NS + 99)
    assert keeper.next_deadline_ns() == 100 + LEASE_NS
    assert LeaseLost(5) in keeper.handle(Serving(False), LEASE_NS + 100)
    keeper = holder()
    keeper.handle(Serving(False), 100)
    renewed(keeper, LEASE_NS // 2)
    keeper.handle(Serving(True), LEASE_NS + 99)
    assert LeaseLost(5) not in keeper.handle(Serving(False), LEASE_NS + 100)


def test_a_lease_has_three_voters() -> None:
    with pytest.raises(ConfigurationError, match="three voters"):
        LeaseConfig(routers=("a", "b"), witness="b")
    with pytest.raises(ConfigurationError, match="not a router"):
        LeaseKeeper(CONFIG, "w", Memory(), Even(), 0)


class Trio:
    """Two routers that both want the lease, and a witness; messages take a millisecond, disks no time."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.keepers = {name: LeaseKeeper(CONFIG, name, Memory(), Even(), 0) for name in CONFIG.routers}
        self.witness: LeaseVoter | None = LeaseVoter(CONFIG, Memory(), 0)
        self.changes: list[tuple[str, str]] = []
        self._letters: list[tuple[int, str, str, Any]] = []
        for name in self.keepers:
            self._tell(name, Fit(True))

    def run(self, leases: int) -> None:
        end_ns = self.now_ns + leases * LEASE_NS
        while True:
            due = [keeper.next_deadline_ns() for keeper in self.keepers.values()]
            due += [at_ns for at_ns, *_ in self._letters]
            self.now_ns = max(self.now_ns, min(at_ns for at_ns in due if at_ns is not None))
            if self.now_ns >= end_ns:
                return
            ready = [each for each in self._letters if each[0] <= self.now_ns]
            self._letters = [each for each in self._letters if each[0] > self.now_ns]
            for _, sender, to, message in ready:
                self._tell(to, Heard(sender, message))
            for name in self.keepers:
                self._tell(name, Tick())

    def _tell(self, name: str, event: Any) -> None:
        core = self.keepers.get(name) or self.witness
        if core is None:
            return
        for told in core.handle(event, self.now_ns):
            match told:
                case Tell(to, message):
                    self._letters.append((self.now_ns + NS_PER_MS, name, to, message))
                case Keep():
                    self._tell(name, Kept())
                case LeaseAcquired() | LeaseLost():
                    self.changes.append((name, type(told).__name__))


@pytest.mark.spec("REPL-14")
def test_a_holder_does_not_depend_on_the_witness() -> None:
    """The standby wants the lease, too, and still votes for the holder."""
    trio = Trio()
    trio.run(leases=5)
    assert trio.changes == [("a", "LeaseAcquired")]
    trio.witness = None
    trio.run(leases=20)
    assert trio.changes == [("a", "LeaseAcquired")], "the other router's vote is enough"


@pytest.mark.spec("REPL-14")
def test_the_standby_takes_over_although_it_voted_for_the_holder() -> None:
    trio = Trio()
    trio.run(leases=5)
    del trio.keepers["a"]
    trio.run(leases=3)
    assert trio.changes == [("a", "LeaseAcquired"), ("b", "LeaseAcquired")]
