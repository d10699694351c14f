"""Bytes that a node could write into a consumer's ring: no bytes break the consumer."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import RemoteProtocolError
from penstock.engine.client._fields import FieldTable
from penstock.engine.client._intake import Intake, count_records, split_block
from penstock.engine.client._notices import Notices
from penstock.engine.client._watch import Watch
from penstock.engine.core.kernel._event import EventKind, make_event, read_events
from penstock.shm import RingReader, RingWriter
from penstock.topics import Predicate
from unit.records_kit import QUOTE, quotes

PLAN = FieldTable(QUOTE), Predicate.compile("bid_price > 1 or symbol like 'A%'", QUOTE).program
RECORD = bytes(QUOTE.new(bid_price=2))

small = st.integers(0, 5)
events = st.builds(
    lambda kind, item, body, version, model_id, slot: make_event(
        kind, item=item, body=body, version=version, number=version, cls=1, model_id=model_id, slot=slot
    ),
    st.sampled_from(list(EventKind)),
    small | st.integers(0, 2**32 - 1),
    st.just(RECORD) | st.binary(max_size=300),
    small,
    st.sampled_from([1, 2]),
    small | st.integers(0, 2**32 - 1),
)
blocks = st.lists(events, max_size=8).map(b"".join)
damages = st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 255)), max_size=4)


def damaged(block: bytes, damage: list[tuple[int, int]]) -> bytes:
    data = bytearray(block)
    for at, value in damage:
        if at < len(data):
            data[at] = value
    return bytes(data)


@given(st.lists(st.tuples(blocks | st.binary(max_size=400), damages), max_size=4))
def test_an_intake_returns_whole_events_or_an_error(parts: list[tuple[bytes, list[tuple[int, int]]]]) -> None:
    intake = Intake(64, lambda model_id, version: PLAN if model_id == 1 else (None, None))
    for block, damage in parts:
        try:
            taken = intake.load(damaged(block, damage))
        except RemoteProtocolError:
            continue
        found = read_events(taken)
        records, notes = split_block(taken)
        assert len(records) + len(notes) == len(taken)
        assert sum(count_records(taken).values()) == sum(each.kind in (2, 3) for each in found)
        assert not any(each.kind == EventKind.NOTICE for each in found)


@given(st.lists(st.tuples(blocks | st.binary(max_size=400), damages), max_size=4))
def test_notices_reach_only_existing_slots(parts: list[tuple[bytes, list[tuple[int, int]]]]) -> None:
    with (
        quotes(4) as made,
        RingWriter.create(1 << 16, 4_096) as writer,
        RingReader(writer.segment) as reader,
    ):
        notices = Notices()
        notices.route(1, [made.watch, Watch(made.store)])
        for block, damage in parts:
            writer.write(damaged(block, damage)[:4_096])
        for _ in parts:
            try:
                read_events(notices.drain(reader, 0))
            except RemoteProtocolError:
                continue
        assert set(made.drain(0)) <= set(range(4))
