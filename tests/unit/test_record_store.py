"""Records as one application reads them: newest values, changed fields, prices as floats."""

import math

import pytest

from penstock.base.errors import LocalProtocolError, SharedMemoryError
from penstock.engine.client._fields import FieldTable
from penstock.engine.client._store import RecordState, RecordStore
from penstock.engine.client.conversion import converted_model
from penstock.shm import RegionMarks
from unit.records_kit import QUOTE, quotes


def test_a_record_that_was_never_written_reads_as_none() -> None:
    with quotes() as made:
        assert made.store.read(0) is None
        assert not made.store.is_updated(0)
        assert made.store.delta(0) == ()


@pytest.mark.spec("ADPT-5")
def test_is_updated_reports_writes_since_the_last_read() -> None:
    with quotes() as made:
        made.write(1, bid_price=10)
        assert made.store.is_updated(1)
        made.store.read(1)
        assert not made.store.is_updated(1)
        made.write(1, bid_price=10)
        assert made.store.is_updated(1)


@pytest.mark.spec("ADPT-7")
def test_a_read_names_the_fields_that_differ_from_the_previous_read() -> None:
    with quotes() as made:
        made.write(1, bid_price=10, symbol="A")
        first = made.store.read(1)
        assert first is not None
        assert first.changed == tuple(field.name for field in QUOTE.fields)
        made.write(1, bid_price=11)
        made.write(1, ask_size=5)
        second = made.store.read(1)
        assert second is not None
        assert second.changed == ("bid_price", "ask_size")
        assert (second.since_count, second.update_count) == (1, 3)
        again = made.store.read(1)
        assert again is not None
        assert again.changed == ()


@pytest.mark.spec("ADPT-7")
def test_delta_leaves_the_last_read_as_it_is() -> None:
    with quotes() as made:
        made.write(0, bid_price=10)
        made.store.read(0)
        made.write(0, bid_price=12)
        assert made.store.delta(0) == ("bid_price",)
        assert made.store.delta(0) == ("bid_price",)
        assert made.store.is_updated(0)
        made.write(0, bid_price=10)
        assert made.store.delta(0) == ()


@pytest.mark.spec("ADPT-8")
def test_a_message_has_the_timestamps_of_the_producer() -> None:
    with quotes() as made:
        made.writer.write(0, QUOTE.new(bid_price=1.5), started_ns=5, finished_ns=7)
        state = made.store.read(0)
        assert isinstance(state, RecordState)
        message = state.message
        assert message.bid_price == 1.5
        assert message.source is state
        assert (state.started_ns, state.finished_ns) == (5, 7)
        assert state.issued_ns > 7


def test_forgotten_records_are_read_as_if_for_the_first_time() -> None:
    with quotes() as made:
        made.write(0, bid_price=10)
        made.store.read(0)
        made.store.forget(0)
        state = made.store.read(0)
        assert state is not None
        assert len(state.changed) == len(QUOTE.fields)
        assert state.since_count == 0


@pytest.mark.spec("OFFL-1")
def test_prices_are_converted_to_floats_of_the_same_value() -> None:
    with quotes(is_converting=True) as made:
        made.write(0, bid_price="12.34500001", ask_price=None, symbol="A", bid_size=7)
        state = made.store.read(0)
        assert state is not None
        assert state.model == converted_model(QUOTE)
        assert (state.message.bid_price, state.message.ask_price) == (12.34500001, None)
        assert (state.message.symbol, state.message.bid_size) == ("A", 7)
        made.write(0, ask_price=1)
        again = made.store.read(0)
        assert again is not None
        assert again.changed == ("ask_price",)
        assert again.message.to_dict() == made.current[0].to_dict()


def test_conversion_of_a_short_record_stays_inside_it() -> None:
    table = FieldTable(QUOTE)
    record = bytes(QUOTE.new(bid_price=2, ask_price=3))
    short = table.converted(record[:16])
    assert len(short) == 16
    assert converted_model(QUOTE).view(short + record[16:]).bid_price == 2.0


def test_a_converted_missing_price_is_not_a_number() -> None:
    record = converted_model(QUOTE).view(FieldTable(QUOTE).converted(QUOTE.new()))
    assert record.bid_price is None
    assert math.isnan(memoryview(record)[:8].cast("d")[0])


def test_read_records_are_marked() -> None:
    with RegionMarks.create(4) as marks, quotes(marks=marks.segment) as made:
        made.write(2, bid_price=1)
        made.write(2, bid_price=2)
        made.store.read(2)
        assert [marks[slot] for slot in range(4)] == [0, 0, 4, 0]
        made.update(2, bid_price=3)
        assert made.drain(0) == [2]
        assert marks[2] == 6


def test_the_number_of_updates_in_a_record_is_read_with_it() -> None:
    with quotes() as made:
        made.writer.write(0, QUOTE.new(), merged=17)
        state = made.store.read(0)
        assert state is not None
        assert state.merged == 17


def test_too_few_marks_are_refused() -> None:
    with RegionMarks.create(3) as marks, pytest.raises(SharedMemoryError, match="too few"), quotes(marks=marks.segment):
        pass


def test_a_state_can_be_sent_to_another_process_and_back() -> None:
    with quotes() as made:
        made.write(0, bid_price=10)
        made.store.read(0)
        made.write(0, bid_price=11)
        state = made.store.read(0)
        assert state is not None
        restored = RecordState.restore(FieldTable(QUOTE), QUOTE, state.content)
        assert restored.content == state.content
        assert restored.changed == ("bid_price",)
        assert restored.message == state.message


def test_slots_outside_and_closed_stores_are_refused() -> None:
    with quotes() as made:
        with pytest.raises(LocalProtocolError):
            made.store.read(4)
        with pytest.raises(LocalProtocolError):
            made.watch.notice(4)
        made.store.close()
        for use in (made.store.read, made.store.is_updated, made.store.delta, made.watch.notice):
            with pytest.raises(LocalProtocolError):
                use(0)
        with pytest.raises(LocalProtocolError):
            made.watch.next(0, 0)


def test_a_region_of_another_model_is_refused() -> None:
    from penstock.model import shipped

    with quotes() as made, pytest.raises(SharedMemoryError):
        RecordStore(made.writer.segment, shipped("trade"))
