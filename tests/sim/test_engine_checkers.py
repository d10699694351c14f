"""Checkers of the simulated distribution plant, by hand: accepted and refused events."""

import pytest

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import SimulationError
from penstock.engine import EventKind, TransmissionClass, make_event, read_events
from penstock.engine.client._store import RecordState, RecordStore
from penstock.engine.core.kernel._event import ALL_ITEMS, ReceiptCause
from penstock.shm import RegionWriter
from penstock.sim import EnginePlant, EnginePlantOptions, World
from penstock.sim.engine.checkers import StoryChecker
from penstock.sim.engine.consumers import Connection, Defined, Taste
from penstock.sim.engine.market import KEPT, NEWEST, Market, Publication
from penstock.sim.engine.records import RecordChecker
from penstock.sim.engine.regions import ReadAmid

TOPIC = "md.newest.1"
AT_PLANT = Connection("plant/0", 1, "critical", is_below=False)
BELOW = Connection("mux-0/0", 1, "critical", is_below=True)


class Told:
    """The story of one topic, as told to a consumer on one connection."""

    def __init__(self, connection: Connection, options: EnginePlantOptions | None = None) -> None:
        self.market = Market(3)
        self.market.start()
        self.stories = StoryChecker(self.market, options or EnginePlantOptions())
        self.stories.subscribed(connection, TOPIC)
        self._connection = connection

    def update(self, number: int, merged: int = 1) -> None:
        """Report the publication of this number to the checker, as an event of the same number."""
        record = self.market.published[TOPIC][number - 1].record(NEWEST)
        cls = TransmissionClass.CRITICAL
        (event,) = read_events(make_event(EventKind.UPDATE, item=1, cls=cls, number=number, merged=merged, body=record))
        self.stories.told(self._connection, event, Defined(TOPIC, NEWEST), NEWEST.view(event.body))

    def refresh(self, number: int) -> None:
        """Write the refresh into the consumer's ring; the consumer has not read it."""
        record = self.market.published[TOPIC][number - 1].record(NEWEST)
        (event,) = read_events(make_event(EventKind.REFRESH, item=1, number=number, body=record))
        self.stories.wrote(self._connection, event, Defined(TOPIC, NEWEST))

    def receipt(self, first: int, last: int) -> None:
        body = first.to_bytes(8, "little") + last.to_bytes(8, "little") + bytes([ReceiptCause.UPSTREAM]) + bytes(7)
        (event,) = read_events(make_event(EventKind.RECEIPT, item=ALL_ITEMS, number=last, body=body))
        self.stories.told(self._connection, event, None, None)


@pytest.mark.spec("CRIT-4")
def test_a_receipt_excuses_nothing_that_is_lost_after_it() -> None:
    told = Told(AT_PLANT)
    for value in range(5):
        told.market.publish(TOPIC, value, 0)
    told.update(1)
    told.receipt(1, 2)  # the lost messages may belong to other items
    told.update(2)
    told.update(3)
    with pytest.raises(SimulationError, match="are not contiguous"):
        told.update(5)


@pytest.mark.spec("CRIT-4")
def test_after_an_overrun_the_next_update_may_come_without_the_lost_refresh() -> None:
    overrun, read = Told(AT_PLANT), Told(AT_PLANT)
    for told in (overrun, read):
        for value in range(3):
            told.market.publish(TOPIC, value, 0)
        told.refresh(2)
    overrun.stories.restarted(AT_PLANT)
    overrun.update(3)
    with pytest.raises(SimulationError, match="are not contiguous"):
        read.update(3)


@pytest.mark.spec("CRIT-1")
def test_nothing_is_conflated_above_whoever_is_at_the_plant() -> None:
    options = EnginePlantOptions(chain_class="adaptive")
    below, at_plant = Told(BELOW, options), Told(AT_PLANT, options)
    for told in (below, at_plant):
        for value in range(2):
            told.market.publish(TOPIC, value, 0)
    below.update(2, merged=2)
    with pytest.raises(SimulationError, match="not contiguous"):
        at_plant.update(2, merged=2)


@pytest.mark.spec("ADPT-4")
def test_a_record_read_amid_a_write_has_no_part_of_another() -> None:
    assert [part.name for part in KEPT.parts] == ["bid", "common", "ask"]
    records = RecordChecker(Market(3), EnginePlantOptions())
    topic = "md.kept.0"
    before, after = (Publication(number, topic, value, 0).record(KEPT) for number, value in ((1, 5), (2, 6)))
    for whole in (None, before, after):
        records.read_amid(AT_PLANT, topic, ReadAmid(whole, before, after))
    mixed = before[: KEPT.parts[1].offset] + after[KEPT.parts[1].offset :]
    with pytest.raises(SimulationError, match="neither the one before nor the one after"):
        records.read_amid(AT_PLANT, topic, ReadAmid(mixed, before, after))


class Read:
    """A reader of one record below, whose publications each replace the record."""

    topic = "md.kept.0"
    reader = Connection("mux-0/0", 1, "adaptive", is_below=True)

    def __init__(self, published: int) -> None:
        self.market = Market(3)
        for value in range(published):
            self.market.publish(self.topic, value, 0)
        self.checker = RecordChecker(self.market, EnginePlantOptions())
        self.checker.subscribed(self.reader, self.topic)

    def read(self, number: int) -> None:
        """The record is the publication of this number, without the ones before."""
        state = self.state(self.market.published[self.topic][number - 1].record(KEPT))
        self.checker.read(self.reader, self.topic, state, is_shared=False, is_updated=True)

    def state(self, record: bytes) -> RecordState:
        with RegionWriter.create(1, [part.size for part in KEPT.parts]) as region:
            region.write(0, record)
            with RecordStore(region.segment, KEPT) as store:
                state = store.read(0)
        assert state is not None
        return state


@pytest.mark.spec("ADPT-4")
def test_a_refresh_after_a_loss_may_have_the_number_of_the_record_that_it_replaces() -> None:
    lost, kept = Read(3), Read(3)
    for each in (lost, kept):
        each.read(1)
        each.checker.wrote_receipt(each.reader, {each.topic: 3})
    lost.checker.observed(lost.reader, {lost.topic: 3}, replaced=[lost.topic])
    lost.read(3)
    kept.checker.observed(kept.reader, {kept.topic: 3}, replaced=[])
    with pytest.raises(SimulationError, match="2 comes first"):
        kept.read(3)


@pytest.mark.spec("ADPT-4")
def test_a_record_that_is_replaced_without_a_receipt_lacks_nothing() -> None:
    read = Read(3)
    read.read(1)
    read.checker.observed(read.reader, {read.topic: 3}, replaced=[read.topic])
    with pytest.raises(SimulationError, match="2 comes first"):
        read.read(3)


@pytest.mark.spec("ADPT-3")
def test_a_region_of_a_connection_that_is_gone_is_not_that_of_the_next_one() -> None:
    tastes = (Taste("region", "adaptive"),)
    plant = EnginePlant(World(1), EnginePlantOptions(muxes=0, tastes=tastes, change_interval_ms=10_000))
    plant.start()
    plant.run(500 * NS_PER_MS)
    (reader,) = plant.consumers
    assert reader.records is not None
    assert reader.consumer is not None
    before = dict(reader.records.regions)
    assert NEWEST.id in before
    with RegionWriter.create(8, [part.size for part in NEWEST.parts]) as region:
        reader.region_opened(reader.consumer + 1, NEWEST, region.segment.copy(), None)
    plant.run(100 * NS_PER_MS)
    assert reader.records.regions == before
    plant.close()
