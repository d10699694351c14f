"""The log of a message router: cleaned, read for messages that left the cache, replayed into new endpoints
(REPL-13)."""

import random
import struct

import pytest

from assured_kit import MemoryJournal, Router, message, queue, texts
from penstock.assured.config import EndpointConfig
from penstock.assured.core.router._records import is_record
from penstock.assured.core.router.events import Append, RecordsRead, RemoveBefore
from penstock.assured.wire.control import DeleteEndpoint, Done, EmptyEndpoint
from penstock.base.errors import JournalCorruptError

KIB = 1024


def small(*endpoints: EndpointConfig, **settings: object) -> Router:
    """A router with short sections and a small cache, and a publisher (handle 1) on link 1."""
    settings = {"message_bytes_max": 1_000, "cache_bytes": 64 * KIB, "section_bytes": 4 * KIB} | settings
    router = Router(*endpoints, **settings)
    router.link(1)
    router.publisher(1)
    return router


def test_messages_that_left_the_cache_are_read_from_the_journal_in_order() -> None:
    router = small(queue("a", "orders.>"), fetch_messages_max=7)
    for number in range(1, 301):
        router.publish(1, 1, number, message(f"{number:05}" + "x" * 500))
    router.link(2)
    router.flow(2, "a", 10_000)
    got = router.delivered(2)
    assert [each.number for each in got] == list(range(1, 301))
    assert len([each for each in router.said if type(each).__name__ == "ReadRecords"]) > 5


def test_a_failed_read_is_repeated() -> None:
    router = small(queue("a", "orders.>"))
    for number in range(1, 201):
        router.publish(1, 1, number, message("x" * 900))
    router.is_reading = False
    router.flow(1, "a", 10_000)
    (request,) = router.reads
    router.reads.clear()
    router.tell(RecordsRead(request.request, *router.journal.batch([]), 1, is_failed=True))
    assert not router.reads
    assert router.core.next_deadline_ns() is not None
    router.is_reading = True
    router.advance(100)
    assert len(router.delivered(1)) == 200


def test_the_log_is_cleaned_and_a_restart_recovers_the_live_messages() -> None:
    """REPL-1: recovery time is proportional to the live messages; the log is about twice as large."""
    router = small(queue("a", "orders.>"), queue("keep", "kept.>"))
    router.publish(1, 1, 1, *[message(f"kept {each}", "kept.x") for each in range(5)])
    flow = router.flow(1, "a", 10**6)
    for number in range(6, 2_000):
        router.publish(1, 1, number, message("x" * 200))
        router.settle(1, flow, *[each.id for each in router.delivered(1)])
        if number % 10 == 0:
            router.advance(100)
    assert sum(isinstance(each, RemoveBefore) for each in router.said) > 10
    assert sum(len(payload) for _, payload in router.journal.records.values()) < 40 * KIB
    after = router.restart()
    assert (after.queued("a"), after.queued("keep")) == (0, 5)
    after.link(1)
    after.flow(1, "keep")
    assert texts(after.delivered(1)) == [f"kept {each}" for each in range(5)]
    handle = after.publisher(1)
    after.publish(1, handle, 1_990, message("again"))
    assert after.outcomes(1) == {1_990: 5}  # the state of a publisher outlives its messages
    assert after.core.tables.next_id > 1_999


def test_delivery_counts_and_dead_letters_survive_cleaning() -> None:
    router = small(queue("a", "orders.>", deliveries_max=3), queue("b", "other.>"))
    router.publish(1, 1, 1, message("poison"))
    flow = router.flow(1, "a", 1_000)
    (got,) = router.delivered(1)
    router.settle(1, flow, got.id, what=2)
    other = router.flow(1, "b", 10**6)
    for number in range(2, 400):
        router.publish(1, 1, number, message("x" * 200, "other.x"))
        router.settle(1, other, *[each.id for each in router.delivered(1) if each.topic == b"other.x"])
        router.advance(100)
    assert router.core.tables.moved_total > 0
    after = router.restart()
    after.link(1)
    flow = after.flow(1, "a")
    (got,) = after.delivered(1)
    assert got.deliveries > 0
    after.settle(1, flow, got.id, what=3)
    assert after.restart().queued("dead") == 1


@pytest.mark.parametrize("seed", range(5))
def test_any_history_is_recovered_exactly(seed: int) -> None:
    """After any sequence of publishing, settling, dead lettering and cleaning, a restarted router has the state of its
    predecessor."""
    draw = random.Random(seed)
    router = small(
        queue("a", "orders.>", deliveries_max=2), queue("b", "orders.x.>", messages_max=20, when_full="dead")
    )
    router.flow(1, "a", 10**6)
    router.flow(1, "b", 10**6)
    number = 1
    for _ in range(150):
        count = draw.randrange(1, 6)
        router.publish(1, 1, number, *[
            message("x" * draw.randrange(300), draw.choice(["orders.x.y", "orders.z"]), priority=draw.randrange(10))
            for _ in range(count)
        ])  # fmt: skip
        number += count
        frames = [frame for frame in router.sent[1] if hasattr(frame, "messages")]
        router.sent[1].clear()
        for frame in frames:
            some = [each.id for each in frame.messages if draw.random() < 0.8]
            if some:
                router.settle(1, frame.flow, *set(some), what=draw.choice([1, 1, 1, 2, 3]))
        router.advance(draw.randrange(50))
    after = router.restart()
    for name in ("a", "b", "dead"):
        assert after.queued(name) == router.queued(name), name
    assert after.core.tables.log.live_size == router.core.tables.log.live_size
    assert after.core.tables.next_id == router.core.tables.next_id


def test_a_journal_with_other_content_is_refused() -> None:
    journal = MemoryJournal()
    journal.records[1] = (0, b"something else")
    journal.next_sequence = 2
    with pytest.raises(JournalCorruptError):
        Router(journal=journal)


# Replay


def replayable(count: int = 20) -> Router:
    """This many messages, all of them settled, half of them live for another endpoint."""
    router = small(queue("a", "orders.>"), queue("slow", "orders.odd"), retain_s=3_600)
    flow = router.flow(1, "a", 10**6)
    for number in range(1, count + 1):
        router.now_ns = number * 10**9
        router.publish(1, 1, number, message(str(number), "orders.odd" if number % 2 else "orders.even"))
        router.settle(1, flow, *[each.id for each in router.delivered(1)])
    return router


def test_an_endpoint_can_begin_with_the_oldest_message_of_the_log() -> None:
    """REPL-13: from a sequence number; messages published in the meantime follow."""
    router = replayable()
    router.is_reading = False
    assert router.create(queue("new", "orders.>"), 1, 1) == Done(0)
    router.flow(1, "new", 10**6)
    router.publish(1, 1, 21, message("21"))
    assert [each.number for each in router.delivered(1)] == [21]  # for endpoint a
    router.is_reading = True
    router.read()
    got = router.delivered(1)
    assert [each.number for each in got] == list(range(1, 22))
    assert [each.flags for each in got] == [2] * 20 + [0]


def test_an_endpoint_can_begin_at_an_id_or_a_time() -> None:
    """REPL-13."""
    router = replayable()
    first = router.core.tables.next_id - 5
    router.create(queue("by-id", "orders.>"), 1, first)
    wall_ns = router.core.tables.wall_ns - 3 * 10**9
    router.create(queue("by-time", "orders.even"), 1, 0, wall_ns)
    router.link(2)
    router.flow(2, "by-id")
    assert [each.number for each in router.delivered(2)] == [16, 17, 18, 19, 20]
    router.flow(2, "by-time")
    assert [each.number for each in router.delivered(2)] == [18, 20]


def test_a_replay_continues_after_a_crash_and_flags_every_redelivery() -> None:
    """REPL-13."""
    router = replayable(40)
    router.create(queue("new", "orders.>"), 1, 1)
    flow = router.flow(1, "new", 5)
    got = router.delivered(1)
    router.settle(1, flow, *[each.id for each in got])
    after = router.restart()
    after.link(1)
    after.flow(1, "new", 10**6)
    rest = after.delivered(1)
    assert [each.number for each in got + rest] == list(range(1, 41))
    assert all(each.flags & 2 for each in rest)


def test_messages_that_wait_behind_a_replay_do_not_delay_the_replay() -> None:
    """REPL-13: new messages that precede the rest of the replay but exceed the cache are not read again and again in
    place of the replay."""
    router = replayable()
    router.is_reading = False
    router.create(queue("new", "orders.>"), 1, 1)
    router.link(2)
    flow = router.flow(2, "new", 0)
    while not router.queued("new"):
        router.read()
    old = router.queued("new")
    for number in range(21, 221):
        router.publish(1, 1, number, message("x" * 500, priority=9))
    router.reads.clear()  # the replay pauses here
    router.credit(2, flow, 1_000)
    router.read()
    assert [each.number for each in router.delivered(2)] == list(range(1, old + 1))


def test_a_deleted_endpoint_ends_its_replay() -> None:
    router = replayable()
    router.is_reading = False
    router.create(queue("new", "orders.>"), 1, 1)
    assert router.ask(DeleteEndpoint, 1, "new") == Done(0)
    router.is_reading = True
    router.read()
    assert router.core.endpoints.get("new") is None


def test_records_are_appended_once_and_in_order() -> None:
    router = replayable()
    appends = [each for each in router.said if isinstance(each, Append)]
    assert [each.first for each in appends[1:]] == [each.through + 1 for each in appends[:-1]]


def test_messages_larger_than_the_cache_of_a_later_run_are_delivered() -> None:
    router = small(queue("a", "orders.>"), message_bytes_max=400 * KIB, cache_bytes=1024 * KIB)
    sent = [str(each) * 300 * KIB for each in range(3)]
    for number, text in enumerate(sent, start=1):
        router.publish(1, 1, number, message(text))
    after = router.restart(message_bytes_max=1_000, cache_bytes=64 * KIB)
    after.link(1)
    after.flow(1, "a")
    after.publish(1, after.publisher(1), 4, message("small"))
    assert texts(after.delivered(1)) == [*sent, "small"]
    after.drop(1)
    after.link(2)
    after.flow(2, "a")
    assert texts(after.delivered(2)) == [*sent, "small"]


def record(kind: int, rest: bytes) -> bytes:
    return struct.pack("<BBHI", kind, 0, 0, 8 + len(rest)) + rest


def test_invalid_records_are_refused_at_any_depth_and_length() -> None:
    depth = 500_000
    heads = [struct.pack("<BBHIQIIQ", 5, 0, 0, 32 * (depth - each), 77, 1, 0, 9) for each in range(depth)]
    assert not is_record(b"".join(heads))  # transactions nested in transactions
    assert is_record(heads[-1])
    assert is_record(record(7, struct.pack("<II", 7, 0)))
    assert not is_record(record(7, struct.pack("<II", 1 << 25, 0)))
    assert is_record(record(4, struct.pack("<IIQ", 1, 2, 3)))
    assert not is_record(record(4, struct.pack("<IIQ", 1, 1 << 25, 3)))


def test_a_run_of_settled_ids_costs_only_the_existing_messages() -> None:
    router = small(queue("a", "orders.>"))
    router.publish(1, 1, 1, message("1"), message("2"))
    number = router.core.endpoints.get("a").number  # type: ignore[union-attr]
    settled = record(3, struct.pack("<IIQQ", number, 1, 0, 2**64 - 1))
    router.journal.records[router.journal.next_sequence] = (0, settled)
    router.journal.next_sequence += 1
    router.journal.durable += 1
    assert router.restart().queued("a") == 0


def test_removed_messages_are_logged_in_records_of_a_megabyte() -> None:
    """For any number of scattered ids, because a journal refuses records above sixteen megabytes."""
    router = Router(queue("a", "orders.a"), queue("b", "orders.b"))
    handle = router.publisher(router.link(1))
    some = [message("", topic) for topic in ("orders.a", "orders.b")] * 2_000
    for portion in range(40):
        router.publish(1, handle, 1 + portion * len(some), *some)
    assert router.queued("a") == router.queued("b") == 80_000
    before = router.journal.next_sequence
    assert router.ask(EmptyEndpoint, 1, "a") == Done(0)
    records = [record for number, (_, record) in router.journal.records.items() if number >= before]
    assert [len(record) <= 1_048_592 for record in records] == [True, True]
    after = router.restart()
    assert (after.queued("a"), after.queued("b")) == (0, 80_000)
