"""Events from a node that may be broken or hostile: accepted, skipped and refused events."""

import pytest

from penstock.base.errors import RemoteProtocolError
from penstock.engine.client._fields import FieldTable
from penstock.engine.client._intake import BLOCK_SIZE, Intake, count_records, gather_records, split_block
from penstock.engine.client.conversion import converted_model
from penstock.engine.core.kernel._event import ALL_ITEMS, EVENT_HEAD_SIZE, EventKind, make_event, read_events
from penstock.model import shipped
from penstock.shm import RingReader, RingWriter
from penstock.topics import Predicate

QUOTE = shipped("quote")
RECORD = bytes(QUOTE.new(bid_price=1.5))


def define(item: int = 0, topic: bytes = b"md.A", model_id: int = 1) -> bytes:
    return make_event(EventKind.DEFINE, item=item, body=topic, model_id=model_id, model_version=1)


def event(kind: EventKind = EventKind.UPDATE, item: int = 0, version: int = 1, **changes: object) -> bytes:
    content = {"body": RECORD, "model_id": 1, "model_version": 1, "cls": 1, "number": version} | changes
    return make_event(kind, item=item, version=version, **content)  # type: ignore[arg-type]


def intake(items_max: int = 100) -> Intake:
    return Intake(items_max, lambda model_id, version: (None, None))


def versions(block: bytes) -> list[int]:
    return [each.version for each in read_events(block) if each.kind in (EventKind.REFRESH, EventKind.UPDATE)]


def test_events_of_defined_items_are_accepted() -> None:
    made = intake()
    block = define() + event(EventKind.REFRESH, version=4, number=9) + event(version=5, number=10)
    assert made.load(block) == block
    assert (made.last_number, made.events) == (10, 3)


@pytest.mark.spec("TP-2")
def test_known_events_are_skipped() -> None:
    made = intake()
    made.load(define() + event(version=3))
    assert versions(made.load(event(version=2) + event(version=3) + event(version=4))) == [4]
    assert made.duplicates == 2
    assert versions(made.load(event(EventKind.REFRESH, version=4))) == []
    assert versions(made.load(event(version=9) + event(EventKind.REFRESH, version=2) + event(version=3))) == [9, 2, 3]


def test_events_of_unknown_items_are_skipped_and_counted() -> None:
    made = intake()
    assert made.load(event() + event(item=ALL_ITEMS) + make_event(EventKind.REMOVE, item=3)) == b""
    assert made.undefined == 3
    made.load(define() + make_event(EventKind.REMOVE, item=0))
    assert made.load(event(version=2)) == b""
    assert versions(made.load(define() + event(version=1))) == [1]


def test_another_run_of_the_node_starts_again() -> None:
    made = intake()
    made.load(define() + event(version=50))
    made.forget()
    assert made.last_number == 0
    assert made.load(event(version=51)) == b""
    assert versions(made.load(define() + event(version=1))) == [1]


def test_only_critical_updates_count_as_a_position() -> None:
    made = intake()
    made.load(define() + event(EventKind.REFRESH, version=1, number=100) + event(version=2, number=90))
    made.load(event(version=3, number=95, cls=3))
    assert made.last_number == 90


@pytest.mark.parametrize(
    "block",
    [
        b"\0",
        event()[:-8],
        event()[: EVENT_HEAD_SIZE - 1],
        event() + b"\0" * 8,
        define(item=100),
        define(item=2**32 - 2),
        define() + event(model_id=2),
        b"\xff" * 4096,
        make_event(EventKind.RECEIPT, item=0, body=b"\0" * 8),
        make_event(EventKind.DEFINE, item=0, body=b""),
    ],
)
def test_invalid_events_are_refused(block: bytes) -> None:
    made = intake()
    with pytest.raises(RemoteProtocolError):
        made.load(block)
    assert versions(made.load(define() + event(version=1))) in ([1], [])


def test_a_truncated_block_is_refused_or_ends_at_an_event() -> None:
    block = define() + event(version=1) + event(version=2)
    whole = {0, len(define()), len(define() + event()), len(block)}
    for size in range(len(block) + 1):
        made = intake()
        if size in whole:
            made.load(block[:size])
        else:
            with pytest.raises(RemoteProtocolError):
                made.load(block[:size])


def test_models_are_learned_once_and_prices_converted() -> None:
    asked: list[tuple[int, int]] = []

    def learn(model_id: int, version: int) -> tuple[FieldTable, None]:
        asked.append((model_id, version))
        return FieldTable(QUOTE), None

    made = Intake(10, learn)
    block = made.load(define() + define(1, b"md.B") + event(version=1) + event(version=2, body=RECORD[:12]))
    assert asked == [(1, 1)]
    bodies = [each.body for each in read_events(block)[2:]]
    assert converted_model(QUOTE).view(bodies[0]).bid_price == 1.5
    assert len(bodies[1]) == 12


def test_a_ring_is_read_in_blocks() -> None:
    with RingWriter.create(1 << 21, 4_096) as writer, RingReader(writer.segment) as reader:
        made = intake()
        writer.write(define())
        count = 2 * BLOCK_SIZE // len(event())
        for version in range(1, count + 1):
            writer.write(event(version=version))
        blocks = [made.take(reader, 0) for _ in range(4)]
        assert [version for block in blocks for version in versions(block)] == list(range(1, count + 1))
        assert len(blocks[0]) >= BLOCK_SIZE > len(blocks[2])
        assert blocks[3] == made.take(reader, 1_000) == b""


def test_records_of_a_block_are_returned_as_rows() -> None:
    import numpy

    own = make_event(EventKind.UPDATE, item=1, version=1, body=b"12345678", model_id=5, model_version=2)
    block = define() + event(version=1) + own + event(version=2, body=RECORD[:16]) + event(version=3)
    assert count_records(block) == {(1, 1): 3, (5, 2): 1}
    rows = numpy.zeros((3, len(RECORD)), numpy.uint8)
    assert gather_records(block, 1, rows) == 2
    assert rows[:2].tobytes() == RECORD * 2
    records, notes = split_block(block)
    assert notes == define()
    assert records == block[len(define()) :]


def test_records_that_do_not_match_the_condition_are_skipped() -> None:
    condition = Predicate.compile("bid_price > 1", QUOTE).program
    made = Intake(10, lambda model_id, version: (FieldTable(QUOTE), condition))
    low = bytes(QUOTE.new(bid_price=1))
    block = made.load(define() + event(version=1) + event(version=2, body=low) + event(version=3))
    assert versions(block) == [1, 3]
    assert (made.filtered, made.last_number) == (1, 3)
