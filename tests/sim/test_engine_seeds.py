"""A ticker plant, multiplexers and consumers under every fault, and checkers that must detect broken promises."""

import os
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.base.errors import SimulationError
from penstock.base.segment import Segment
from penstock.engine import DistributionEngine, read_events
from penstock.engine.core import class_selection
from penstock.engine.core.events import Image, Lost, RegionOpened, Unsubscribe
from penstock.engine.core.interests import Interests
from penstock.engine.core.kernel._event import EVENT_HEAD_SIZE, EventKind, TransmissionClass
from penstock.engine.core.metering_limits import interval_ns
from penstock.middleware import LossReceipt, SessionEvent
from penstock.model import MessageModel
from penstock.plant.core.incoming import Incoming, Updated
from penstock.plant.live.datagrams import hear
from penstock.shm import RegionReader
from penstock.shm._region import RECORD_HEADER_SIZE, REGION_HEADER_SIZE
from penstock.sim import EnginePlant, EnginePlantOptions, World, run_engine_seed
from penstock.sim.engine import chains, regions
from penstock.sim.engine.consumers import MODELS_BY_ID, ConsumerNode, Taste

SEEDS = 60
SEEDS_PER_TEST = 20
SOAK_SEEDS = 4_000
SECONDS = 0.3


def run_seeds(seeds: range, seconds: float = SECONDS) -> None:
    for seed in seeds:
        run_engine_seed(seed, seconds=seconds)


@pytest.mark.spec("TP-2", "MUX-1", "CRIT-1", "CRIT-4", "ADPT-1", "METR-1", "METR-4", "DAY-3")
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_each_class_keeps_its_promise(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.spec("CRIT-4")
def test_what_waited_when_a_ring_was_overrun_is_not_mixed_with_what_is_replayed() -> None:
    options = EnginePlantOptions(
        tastes=(
            Taste("session", "metered", 20, is_slow=True),
            Taste("session", "metered", 20, is_slow=True),
            Taste("ring", "auto", 50, is_slow=True),
            Taste("ring", "metered", 200),
        ),
        updates_per_s=1_000,
        history_bytes=4_194_304,
        change_interval_ms=200,
        chain_bytes_per_s=1_000_000,
        fault_interval_ms=15,
    )
    plant = EnginePlant(World(911), options)  # a seed that once failed
    plant.start()
    plant.run(2_000_000_000)
    plant.finish()


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 50))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 50), seconds=2)


def test_a_seed_replays_exactly() -> None:
    assert run_engine_seed(3, seconds=0.3) == run_engine_seed(3, seconds=0.3)
    assert run_engine_seed(3, seconds=0.3).digest != run_engine_seed(4, seconds=0.3).digest


def test_the_seeds_reach_every_kind_of_trouble() -> None:
    summaries = [run_engine_seed(seed, seconds=SECONDS) for seed in range(40)]
    for name in (
        "updates_delivered", "updates_merged", "updates_metered", "updates_replayed", "refreshes", "receipts",
        "overruns", "crashes", "rule_changes", "records_read", "records_read_amid", "datagrams_lost", "reliefs",
        "updates_relieved", "session_changes", "records_withdrawn",
    ):  # fmt: skip
        assert sum(getattr(each, name) for each in summaries) > 5, name


def test_a_quiet_plant_loses_nothing() -> None:
    plant = EnginePlant(World(7), EnginePlantOptions())
    plant.start()
    plant.run(500_000_000)
    plant.finish()
    summary = plant.summary()
    assert (summary.receipts, summary.crashes, summary.overruns) == (0, 0, 0)
    assert summary.updates_delivered > 300


# Each sabotage breaks one promise; a checker must detect the sabotage from outside.


def leave_the_overrun_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DistributionEngine, "_restart", lambda self, event: None)


def say_nothing_of_losses_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node reports neither a lost link to its upstream node nor a gap in the updates received from there."""
    original = DistributionEngine._handle_upstream

    def broken(self: DistributionEngine, event: Any) -> None:
        if isinstance(event, Image) and self.current([event.topic.decode()]):
            model = MODELS_BY_ID[event.model_id]
            self.publish(event.topic, model, event.record, self._interests.now_ns, 0, event.version)
        elif not isinstance(event, Lost):
            original(self, event)

    monkeypatch.setattr(DistributionEngine, "_handle_upstream", broken)


def send_four_times_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_selection, "interval_ns", lambda per_second: interval_ns(4 * per_second))


def forget_what_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer wakes the node when a withheld update is due."""
    monkeypatch.setattr(DistributionEngine, "next_deadline_ns", lambda self: None)


def keep_no_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_selection.ClassSelector, "spans", lambda self, model_id: None)


def conflate_trades(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_selection, "nearest", lambda cls, served, *, is_conflatable: cls)


def keep_records_of_ended_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers are told that the session has ended, but the node withdraws no records."""

    def broken(self: DistributionEngine, event: SessionEvent) -> None:
        is_first = (event.feed, event.stream_id) not in self._sessions
        if self._note_session(event):
            self._send_session(event, is_first=is_first)

    monkeypatch.setattr(DistributionEngine, "_change_session", broken)


def name_no_session_to_nodes_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 8 restarts a plant in another session while a multiplexer has a record of the session before."""

    def broken(self: Incoming, item: Any, event: Any) -> Image:
        return Image(*item, event.version, event.body, event.started_ns, self._is_repairing)

    def update(self: EnginePlant, engine: DistributionEngine, update: Updated, now_ns: int) -> None:
        engine.kernel.publish(*update[:-2], now_ns, update.merged)

    monkeypatch.setattr(Incoming, "_image", broken)
    monkeypatch.setattr(EnginePlant, "publish_below", update)


def forget_sessions_that_were_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Consumers that were overrun or had no room are not refreshed later."""
    monkeypatch.setattr(DistributionEngine, "_resend_sessions", lambda self: None)


def write_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are written with the next event of another kind, not with their update."""
    draw = EnginePlantOptions.draw
    options = staticmethod(lambda randomness: msgspec.structs.replace(draw(randomness), budget_bytes=0))
    monkeypatch.setattr(EnginePlantOptions, "draw", options)
    original = DistributionEngine.next_deadline_ns

    def broken(self: DistributionEngine) -> int | None:
        deadline_ns = original(self)
        return None if deadline_ns == self._interests.now_ns else deadline_ns

    monkeypatch.setattr(DistributionEngine, "next_deadline_ns", broken)


def relieve_trades(monkeypatch: pytest.MonkeyPatch) -> None:
    """A congestion signal moves every item to another class, even items that may not be conflated."""
    original = class_selection.ClassSelector.select

    def broken(
        self: class_selection.ClassSelector, consumer: Any, requested: Any, *told: Any
    ) -> class_selection.ClassSelection:
        chosen = original(self, consumer, requested, *told)
        return (
            chosen._replace(cls=TransmissionClass.ADAPTIVE, program=None)
            if self.relief.is_on and requested == "auto"
            else chosen
        )

    monkeypatch.setattr(class_selection.ClassSelector, "select", broken)


def heed_no_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node keeps its classes after a congestion signal."""
    monkeypatch.setattr(Interests, "reselect_all", lambda self: None)


def tell_of_losses_that_were_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each unsubscription reports lost updates to all consumers of the plant."""
    original = DistributionEngine.handle

    def broken(self: DistributionEngine, event: Any, now_ns: int) -> Any:
        if isinstance(event, Unsubscribe) and not self.config.has_upstream:
            self.kernel.lose_upstream(now_ns)
        return original(self, event, now_ns)

    monkeypatch.setattr(DistributionEngine, "handle", broken)


def never_go_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DistributionEngine, "_live", lambda self, subscription: None)


def tear_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer reads a record under the number of a different record."""
    original = ConsumerNode._take

    def broken(self: ConsumerNode, data: bytes) -> None:
        head = EVENT_HEAD_SIZE
        events = read_events(data)
        if len(events) == 1 and events[0].kind == EventKind.UPDATE and events[0].number % 50 == 0:
            data = data[:head] + (events[0].number + 1).to_bytes(8, "little") + data[head + 8 :]
        original(self, data)

    monkeypatch.setattr(ConsumerNode, "_take", broken)


def read_without_care(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that reads a record during a write takes the half-written content."""

    class Payload(NamedTuple):
        payload: bytes

    class Careless:
        def __init__(self, segment: Segment, model: MessageModel) -> None:
            self._fd, self._size = segment.fds[0], RegionReader(segment, model).payload_size

        def read(self, index: int) -> Payload:
            return Payload(os.pread(self._fd, self._size, REGION_HEADER_SIZE + RECORD_HEADER_SIZE))

        def close(self) -> None:
            """There is nothing to close."""

    original = regions.HalfWritten.__init__

    def broken(self: regions.HalfWritten, model: MessageModel) -> None:
        original(self, model)
        self._reader.close()
        self._reader = Careless(self._segment, model)  # type: ignore[assignment]

    monkeypatch.setattr(regions.HalfWritten, "__init__", broken)


def keep_to_the_region_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer whose region is replaced finds at most the content of the first region in the new one."""
    original = DistributionEngine.handle

    def broken(self: DistributionEngine, event: Any, now_ns: int) -> Any:
        if isinstance(event, RegionOpened) and self._regions.of(event.consumer) and event.sink.is_shared:
            return []
        return original(self, event, now_ns)

    monkeypatch.setattr(DistributionEngine, "handle", broken)


def lose_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer does not tell the node which records it has read, so a record stands for too many updates."""
    original = regions.RecordStore

    def without_marks(region: Segment, model: MessageModel, marks: Segment | None) -> Any:
        return original(region, model)

    monkeypatch.setattr(regions, "RecordStore", without_marks)


def ignore_lost_datagrams(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(received: Any, *told: Any) -> None:
        if not isinstance(received, LossReceipt):
            hear(received, *told)

    monkeypatch.setattr(chains, "hear", broken)


def take_what_was_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The update that arrives last counts, even if an older version arrives on another stream."""
    monkeypatch.setattr(Incoming, "_is_newest", lambda self, item, number: True)


@pytest.mark.parametrize(
    ("sabotage", "first", "checker"),
    [
        (leave_the_overrun_alone, 27, "NewestChecker"),
        (say_nothing_of_losses_above, 0, "StoryChecker"),
        (send_four_times_too_often, 3, "RateChecker"),
        (forget_what_is_withheld, 4, "NewestChecker"),
        (keep_no_contract, 1, "StoryChecker"),
        (conflate_trades, 1, "SignalChecker"),
        (never_go_live, 0, "NewestChecker"),
        (write_late, 4, "FreshnessChecker"),
        (tear_records, 0, "ContentChecker"),
        (read_without_care, 0, "RecordChecker"),
        (keep_to_the_region_before, 0, "AgeChecker"),
        (lose_marks, 0, "RecordChecker"),
        (relieve_trades, 15, "SignalChecker"),
        (heed_no_signal, 15, "SignalChecker"),
        (tell_of_losses_that_were_none, 0, "ReceiptChecker"),
        (ignore_lost_datagrams, 27, "StoryChecker"),
        (take_what_was_overtaken, 2, "StoryChecker"),
        (keep_records_of_ended_sessions, 0, "SessionChecker"),
        (forget_sessions_that_were_lost, 0, "SessionChecker"),
        (name_no_session_to_nodes_below, 8, "SessionChecker"),
    ],
)
def test_the_checkers_notice(sabotage: Any, first: int, checker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`first` is a seed that fails, so that the test is short."""
    sabotage(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        run_seeds(range(first, 100))
    assert checker in caught.value.what.splitlines()[0]
    assert "penstock sim --scenario engine --seed" in caught.value.hint


@pytest.mark.spec("ADPT-1")
def test_adaptive_records_are_to_be_new_soon_after_congestion(monkeypatch: pytest.MonkeyPatch) -> None:
    """One millisecond after congestion some records are still on their way, and the check must report them."""
    monkeypatch.setattr("penstock.sim.engine.plant.CALM_NS", 1_000_000)

    def run_all() -> None:
        for seed in range(60):
            run_engine_seed(seed, seconds=0.3)

    with pytest.raises(SimulationError, match="NewestChecker"):
        run_all()
