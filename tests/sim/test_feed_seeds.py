"""A feed under every fault of adapters, disks, lines and networks, and checkers that must detect broken promises."""

from typing import Any

import msgspec
import pytest

from penstock.base.errors import SimulationError
from penstock.feed.core.events import RoleChanged
from penstock.feed.core.sync.flow import StreamFlow
from penstock.feed.core.sync.follower import StreamFollower
from penstock.feed.core.sync.image_transfer import ImageSender
from penstock.feed.core.sync.membership import Membership
from penstock.feed.core.sync.synchroniser import Synchroniser
from penstock.middleware import Discontinuity, SessionEvent
from penstock.middleware.core.source_stream import SourceStream
from penstock.sim import FeedPlant, FeedPlantOptions, World, run_feed_seed
from penstock.sim.feed.checkers import LosslessChecker
from penstock.sim.feed.nodes import AdapterNode
from penstock.wire.term import TAKEOVERS_MAX, Term
from sim.toy_market import ToyMarket

SEEDS = 50
SEEDS_PER_TEST = 10
SOAK_SEEDS = 4_000


def run_seeds(seeds: range, seconds: float = 0.8) -> None:
    for seed in seeds:
        run_feed_seed(seed, seconds=seconds)


@pytest.mark.spec("SYNC-2", "SYNC-7", "SYNC-8", "SYNC-9")
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_one_content_per_number_each_message_once_and_never_two_unfenced_actives(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.parametrize("seed", [2_679, 3_864, 4_023, 4_058, 4_137])
def test_seeds_that_failed_once(seed: int) -> None:
    """Cases that once failed: a new session whose first messages are announced as lost (twice); a backup that
    synchronises again without reporting the messages it left out; a day that follows a day with missing messages; a
    short stall within a long one."""
    run_feed_seed(seed, seconds=4)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 50))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 50), seconds=4)


def test_a_seed_replays_exactly() -> None:
    assert run_feed_seed(5, seconds=0.5) == run_feed_seed(5, seconds=0.5)
    assert run_feed_seed(5, seconds=0.5).digest != run_feed_seed(6, seconds=0.5).digest


def test_the_seeds_cover_every_kind_of_fault() -> None:
    summaries = [run_feed_seed(seed, seconds=1.0) for seed in range(8)]
    for name in ("crashes", "takeovers", "discontinuities"):
        assert sum(getattr(each, name) for each in summaries) > len(summaries), name
    assert {each.is_mild for each in summaries} == {True, False}


def test_a_quiet_feed_has_one_active_adapter_and_loses_nothing() -> None:
    plant = FeedPlant(World(7), FeedPlantOptions())
    plant.start()
    plant.run(1_000_000_000)
    plant.finish()
    summary = plant.summary()
    assert (summary.takeovers, summary.gaps_reported) == (1, 0)
    assert summary.messages_delivered > 500


# Each sabotage breaks one promise of the product; a checker must detect the sabotage from outside.


def believe_any_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backup compares numbers only."""
    original = StreamFollower._judge

    def broken(self: StreamFollower, state: Any, mine: Any, now_ns: int) -> list[Any]:
        return original(self, msgspec.structs.replace(state, digest=mine.digest), mine, now_ns)

    monkeypatch.setattr(StreamFollower, "_judge", broken)


def stay_synchronised_over_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamFollower, "lose", lambda self, first, last: self.flow.lose(first, last) or [])


def go_on_over_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """An active adapter keeps its term when source messages are missing."""

    def broken(self: Synchroniser, event: Any, now_ns: int) -> list[Any]:
        return self._streams[event.stream_id].flow.lose(event.first, event.last) or []

    monkeypatch.setattr(Synchroniser, "_break", broken)


def use_a_term_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Membership.claim_break

    def broken(self: Membership, reason: Any) -> list[Any]:
        said = original(self, reason)
        return said + (self.persist_done(self._claim.term, 0) if self._claim else [])

    monkeypatch.setattr(Membership, "claim_break", broken)


def never_step_down(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Membership.follow
    monkeypatch.setattr(Membership, "follow", lambda self, term: [] if self.role == "active" else original(self, term))


def share_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every adapter claims terms under the index of the first adapter."""
    import penstock.feed.core.sync.membership as membership

    for name in ("term_after_break", "term_after_takeover"):
        original = getattr(membership, name)
        monkeypatch.setattr(membership, name, lambda term, index, original=original: original(term, 0))


def forget_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses everything."""
    monkeypatch.setattr(AdapterNode, "durable_term", lambda self: 0)


def announce_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A break is treated as a seamless takeover."""
    import penstock.feed.core.sync.membership as membership

    def broken(term: int, index: int) -> int:
        known = Term.of(term)
        return int(Term(max(1, known.generation), known.breaker, known.takeover + 1, index))

    monkeypatch.setattr(membership, "term_after_break", broken)


def forget_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter announces a discontinuity without the missing ranges."""
    monkeypatch.setattr(StreamFlow, "_note_loss", lambda self, first, last: setattr(self, "_is_damaged", True))


def send_no_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageSender, "ask", lambda self, peer, request, now_ns: [])


def never_take_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Membership, "_claim_in_turn", lambda self, others, now_ns: [])


def deliver_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SourceStream._release

    def broken(self: SourceStream, early: Any) -> Any:
        for outcome in original(self, early):
            yield outcome
            if early.origin.message_sequence % 20 == 0:
                yield outcome

    monkeypatch.setattr(SourceStream, "_release", broken)


def skip_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SourceStream._release

    def broken(self: SourceStream, early: Any) -> Any:
        outcomes = list(original(self, early))
        yield from outcomes if early.origin.message_sequence % 20 else []

    monkeypatch.setattr(SourceStream, "_release", broken)


def begin_sessions_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SourceStream._adopt_announced

    def broken(self: SourceStream, early: Any) -> Any:
        yield from (outcome for outcome in original(self, early) if not isinstance(outcome, SessionEvent))

    monkeypatch.setattr(SourceStream, "_adopt_announced", broken)


def end_sessions_for_every_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a session is reported once for each adapter that announces it."""
    original = SourceStream._end_session

    def broken(self: SourceStream, early: Any) -> Any:
        yield from original(self, early)
        self._is_ended = False

    monkeypatch.setattr(SourceStream, "_end_session", broken)


@pytest.mark.parametrize(
    ("sabotage", "first"),
    [
        (believe_any_state, 1),
        (stay_synchronised_over_a_loss, 47),
        (go_on_over_a_loss, 3),
        (use_a_term_at_once, 0),
        (never_step_down, 0),
        (share_terms, 6),
        (forget_terms, 3),
        (announce_nothing, 6),
        (forget_what_was_lost, 6),
        (send_no_images, 0),
        (never_take_over, 4),
        (deliver_twice, 0),
        (skip_silently, 0),
        (begin_sessions_silently, 0),
        (end_sessions_for_every_adapter, 34),
    ],
)
def test_the_checkers_detect_every_sabotage(sabotage: Any, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`first` is a seed that fails, so that the test is short."""
    sabotage(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        run_seeds(range(first, 100))
    assert "Checker" in caught.value.what
    assert "penstock sim --scenario feed --seed" in caught.value.hint


def test_the_simulator_accepts_other_markets() -> None:
    assert run_feed_seed(3, seconds=0.5, market=ToyMarket(3)).messages_delivered > 0


class ShortDays(ToyMarket):
    def day(self, stream_id: int, session: str) -> list[bytes]:
        return super().day(stream_id, session)[:40]


def test_a_new_session_begins_after_the_last_message_of_a_day() -> None:
    plant = FeedPlant(World(7), FeedPlantOptions(), ShortDays(7))
    plant.start()
    plant.run(1_000_000_000)
    plant.finish()
    assert len(plant.exchange.logs[1].sessions) > 3
    assert plant.summary().messages_delivered > 200


@pytest.mark.parametrize("takeover", [TAKEOVERS_MAX - 2, TAKEOVERS_MAX - 1])
def test_a_promotion_is_a_loss_unless_it_follows_the_last_takeover_of_a_lineage(takeover: int) -> None:
    plant = FeedPlant(World(7), FeedPlantOptions())
    checker = LosslessChecker(plant)
    checker.role_changed(plant.adapters[0], RoleChanged("active", int(Term(3, 0, takeover, 0)), ""))
    told = Discontinuity(1, int(Term(4, 1, 0, 1)), 9, 9, "promotion", ())
    if takeover == TAKEOVERS_MAX - 1:
        checker.told(plant.subscribers[0].viewer(), told)
        return
    with pytest.raises(SimulationError, match="avoidable loss"):
        checker.told(plant.subscribers[0].viewer(), told)
