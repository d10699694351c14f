"""Inline commit: a publisher that waits for each message is served without the router's loop, with the same result and
sooner."""

import select
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from hypothesis import strategies as st

from assured_kit import Router, message, queue, texts
from disk_kit import FULL, UNSYNCED, broken_disk
from inline_commit_kit import RealJournal, ServedRouter
from penstock.assured.config import EndpointConfig
from penstock.assured.core.router.events import Data
from penstock.assured.wire._layout import (
    MESSAGE_RESENT,
    MESSAGE_WANTS_SYNC,
    OUTCOME_BAD_TOPIC,
    OUTCOME_DEGRADED,
    OUTCOME_FULL,
    OUTCOME_KNOWN,
    OUTCOME_STORED,
    OUTCOME_TOO_LARGE,
    OUTCOME_UNMATCHED,
)
from penstock.assured.wire.frames import Published, encode_credit, encode_publish, encode_settle
from penstock.base.clock import NS_PER_SECOND
from penstock.journal import JournalConfig, JournalWriter
from waiting import PATIENCE_SECONDS, wait_until

ENDPOINTS = (
    queue("all", ">"),
    queue("orders", "orders.>"),
    queue("few", "few", "few.>", messages_max=2),
    queue("over", "over", messages_max=1, when_full="dead", dead_to="dead"),
    queue("dead", dead_to=""),
    queue("brief", "brief.*", age_ms_max=60_000),
    queue("both", "orders.new", replication="synchronous"),
)
WITHOUT_ALL = ENDPOINTS[1:]
TOTALS = (
    "next_id",
    "message_count",
    "entry_count",
    "expiring_count",
    "accepted_total",
    "acknowledged_total",
    "refused_total",
    "known_total",
    "unmatched_total",
    "delivered_total",
    "given_up_total",
    "waiting_count",
)


@contextmanager
def serving(*endpoints: EndpointConfig, **settings: Any) -> Iterator[ServedRouter]:
    config = JournalConfig(segment_bytes=16_384, preallocate_bytes=6_000)
    with tempfile.TemporaryDirectory() as directory:
        journal = RealJournal(Path(directory) / "journal", config)
        with closing(ServedRouter(*endpoints or WITHOUT_ALL, journal=journal, **settings)) as router:
            yield router


@pytest.fixture
def served() -> Iterator[ServedRouter]:
    with serving() as router:
        yield router


def state_of(router: Router) -> dict[str, Any]:
    """The observable content of a router's tables."""
    tables = router.core.tables
    return {
        **{name: getattr(tables, name) for name in TOTALS},
        "next_sequence": tables.log.next_sequence,
        "oldest_section": tables.log.oldest_section,
        "log_size": tables.log.size,
        "live_size": tables.log.live_size,
        "pending_size": tables.log.pending_size,
        "unreplicated_count": tables.replication.unreplicated_count,
        "publisher_count": tables.publishers.count,
        "outcomes": tables.publishers.outcome_counts(),
        "endpoints": {each.name: tables.endpoint_numbers(each.number) for each in router.core.endpoints},
        "publishers": [tables.publishers.state(handle, 1) for handle in range(1, 4)],
    }


def publish(handle: int, number: int, text: str = "x", topic: str = "orders.new", **settings: int) -> bytes:
    return encode_publish(handle, number, [message(text, topic, **settings)])


# The same messages with and without inline commit


TOPICS = [b"orders.new", b"orders.old", b"few", b"few.more", b"over", b"brief.one", b"nobody"]
BAD_TOPICS = [b"a..b", b"", b"x" * 255, b"\xff.bad", b"orders.*"]


class Sent(NamedTuple):
    """A message, and how it is numbered."""

    publisher: int
    step: int
    count: int
    topic: bytes
    size: int
    priority: int
    flags: int
    model: int
    ttl_ms: int

    def messages(self) -> list[Published]:
        payload = bytes(index % 251 for index in range(self.size))
        each = Published(self.topic, payload, self.priority, self.flags, self.model, self.model, self.ttl_ms)
        return [each] * self.count


FIRST = Sent(publisher=0, step=1, count=1, topic=b"orders.new", size=5, priority=4, flags=0, model=0, ttl_ms=0)
"""A message that fits."""

steps = st.lists(
    st.builds(
        Sent,
        publisher=st.sampled_from([0, 0, 0, 1]),
        step=st.sampled_from([1, 1, 1, 1, 0, -1, 5]),
        count=st.sampled_from([1, 1, 1, 1, 1, 2]),
        topic=st.sampled_from(TOPICS * 3 + BAD_TOPICS),
        size=st.sampled_from([0, 1, 7, 8, 40, 3_000, 4_096, 4_097]),
        priority=st.integers(0, 9),
        flags=st.sampled_from([0, 0, MESSAGE_RESENT, MESSAGE_WANTS_SYNC]),
        model=st.integers(0, 2),
        ttl_ms=st.sampled_from([0, 0, 60_000]),
    ),
    max_size=20,
)


@pytest.mark.spec("REPL-1")
@hypothesis.settings(max_examples=60)
@hypothesis.given(
    steps=steps, settings=st.sampled_from([{}, {"unmatched": "refuse"}, {"retain_s": 60}]), is_all_wanted=st.booleans()
)
def test_inline_commit_gives_the_same_tables_log_and_acknowledgements(
    steps: list[Sent], settings: dict[str, Any], is_all_wanted: bool
) -> None:
    endpoints = ENDPOINTS if is_all_wanted else WITHOUT_ALL
    settings = {"message_bytes_max": 4_096, "section_bytes": 4_096, **settings}
    with serving(*endpoints, **settings) as served:
        plain = Router(*endpoints, **settings)
        plain.link(1)
        handles = [(served.publisher(1, each), plain.publisher(1, each)) for each in (77, 78)]
        numbers = [0, 0]
        for sent in (FIRST, *steps):
            numbers[sent.publisher] = number = max(1, numbers[sent.publisher] + sent.step)
            here, there = handles[sent.publisher]
            served.serve(encode_publish(here, number, sent.messages()))
            plain.now_ns = served.now_ns
            plain.publish(1, there, number, *sent.messages())
            assert served.outcomes(1) == plain.outcomes(1)
            assert state_of(served) == state_of(plain)
        assert served.kernel.served
        compare_consumers(served, plain)
        assert served.journal.records == plain.journal.records


def compare_consumers(served: Router, plain: Router) -> None:
    """Consumers then get the same messages, and all of them survive a crash."""
    plain.now_ns = served.now_ns
    for router in (served, plain):
        router.link(2)
        for endpoint in ("orders", "few", "over", "dead", "brief", "both"):
            router.flow(2, endpoint)
    assert served.delivered(2) == plain.delivered(2)
    assert state_of(served) == state_of(plain)
    for router in (served.restart(), plain.restart()):
        assert router.core.tables.message_count == served.core.tables.message_count


def test_most_messages_take_the_inline_path(served: ServedRouter) -> None:
    """Messages that are refused or cannot be decoded on this path go to the loop, and still get an outcome."""
    handle = served.publisher(1)
    cases = [
        ("orders.old", OUTCOME_STORED, True),
        ("orders.new", OUTCOME_DEGRADED, True),
        ("nobody", OUTCOME_UNMATCHED, True),
        ("over", OUTCOME_STORED, True),
        ("over", OUTCOME_STORED, True),
        ("a..b", OUTCOME_BAD_TOPIC, False),
    ]
    for number, (topic, outcome, is_short) in enumerate(cases, start=1):
        before = served.kernel.served
        served.serve(publish(handle, number, topic=topic))
        assert (served.kernel.served > before) or not is_short
        assert served.outcomes(1) == {number: outcome}
    assert served.queued("dead") == 1
    served.serve(publish(handle, 1, topic="orders.old"))
    assert served.outcomes(1) == {1: OUTCOME_KNOWN}
    assert served.queued("orders") == 2
    for number in (10, 11, 12):
        served.serve(publish(handle, number, topic="few"))
    assert served.outcomes(1) == {10: OUTCOME_STORED, 11: OUTCOME_STORED, 12: OUTCOME_FULL}


def test_a_payload_that_is_too_large_is_refused() -> None:
    with serving(message_bytes_max=10) as served:
        served.serve(publish(served.publisher(1), 1, "x" * 11))
        assert served.outcomes(1) == {1: OUTCOME_TOO_LARGE}


def test_messages_committed_inline_survive_a_crash(served: ServedRouter) -> None:
    """REPL-1: a router that restarts from the journal alone has the messages and the publisher's numbers."""
    handle = served.publisher(1)
    for number in range(1, 20):
        assert served.serve(publish(handle, number, str(number), "orders.old"))
    assert served.kernel.served == 19
    after = served.restart()
    after.link(5)
    again = after.publisher(5)
    after.publish(5, again, 19, message("19", "orders.old"), message("20", "orders.old"))
    assert after.outcomes(5) == {19: OUTCOME_KNOWN, 20: OUTCOME_STORED}
    after.flow(5, "orders")
    assert texts(after.delivered(5)) == [str(number) for number in range(1, 21)]


def test_a_consumer_with_credit_gets_messages_in_their_order(served: ServedRouter) -> None:
    handle = served.publisher(1)
    served.link(2)
    flow = served.flow(2, "orders", credit=3)
    got = []
    for number in range(1, 11):
        assert served.serve(publish(handle, number, str(number), "orders.old"))
        assert served.outcomes(1) == {number: OUTCOME_STORED}
        got += served.delivered(2)
        assert texts(got) == [str(each) for each in range(1, min(number, 3) + 1)], "immediately, while there is credit"
    served.credit(2, flow, 10)
    got += served.delivered(2)
    assert texts(got) == [str(number) for number in range(1, 11)]
    assert not any(each.flags for each in got)
    served.settle(2, flow, *[each.id for each in got])
    assert served.core.tables.message_count == 0


def test_the_inline_path_ends_as_soon_as_another_event_arrives(served: ServedRouter) -> None:
    handle = served.publisher(1)
    one, other = socket.socketpair()
    with one, other:
        served.other_links.register(other, select.EPOLLIN)
        assert served.serve(publish(handle, 1, "1", "orders.old"), for_ns=NS_PER_SECOND)
        assert not served.kernel.is_next_ready, "it waited for the next message"
        one.send(b"a word")
        assert served.serve(publish(handle, 2, "2", "orders.old"), for_ns=NS_PER_SECOND)
        assert served.kernel.is_next_ready, "it did not wait"
    assert served.outcomes(1) == {1: OUTCOME_STORED, 2: OUTCOME_STORED}


# Bytes that are not exactly one message of a publisher of this link


def test_pieces_of_a_frame_and_several_frames_are_returned_to_the_loop(served: ServedRouter) -> None:
    handle = served.publisher(1)
    frame = publish(handle, 1, "one", "orders.old")
    for cut in (1, 3, 4, 5, 20, len(frame) - 1):
        served.client.sendall(frame[:cut])
        assert served_rest(served) == frame[:cut]
    two = frame + publish(handle, 2, "two", "orders.old")
    for data in (two, two[:-1], frame + b"\0", encode_publish(handle, 1, [message()] * 2), encode_credit(1, 5)):
        served.client.sendall(data)
        assert served_rest(served) == data
    assert served.kernel.served == 0
    assert state_of(served)["accepted_total"] == 0
    assert served.serve(frame)
    assert served.outcomes(1) == {1: OUTCOME_STORED}


def served_rest(served: ServedRouter) -> bytes:
    """Input that the kernel returns to the loop without a reaction."""

    def work(journal: Any) -> None:
        owners = served.core.endpoints.matcher.owners
        served.rest = served.kernel.serve(journal, served._socket.fileno(), 1, owners, 0, 0)

    before = state_of(served)
    assert served.journal.writer.inline_commit(work) is not None
    assert state_of(served) == before, "no change"
    assert served.answers() == b""
    return served.rest


@hypothesis.given(
    changes=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 255)), min_size=1, max_size=3),
    tail=st.binary(max_size=3),
)
def test_invalid_frames_are_refused_as_in_the_loop(changes: list[tuple[int, int]], tail: bytes) -> None:
    """A frame with some bytes changed is accepted or refused exactly as in the loop."""
    with serving() as served:
        plain = Router(*WITHOUT_ALL)
        plain.link(1)
        handle = served.publisher(1)
        assert handle == plain.publisher(1)
        frame = bytearray(publish(handle, 1, "payload", "orders.old"))
        for at, value in changes:
            frame[at % len(frame)] = value
        data = bytes(frame) + tail
        served.serve(data)
        plain.now_ns = served.now_ns
        if served.kernel.served or served.rest:
            plain.tell(Data(1, data))
        assert served.sent[1] == plain.sent[1]
        assert served.ended(1) == plain.ended(1)
        assert state_of(served) == state_of(plain)
        assert served.journal.records == plain.journal.records


@hypothesis.given(data=st.binary(min_size=1, max_size=200))
def test_random_bytes_change_nothing(data: bytes) -> None:
    with serving() as served:
        served.publisher(1)
        served.client.sendall(data)
        assert served_rest(served) == data


def test_a_publisher_of_another_link_is_not_served_inline(served: ServedRouter) -> None:
    served.link(2)
    other = served.publisher(2, 99)
    for handle in (0, other, other + 1, 2**32 - 1):
        served.client.sendall(publish(handle, 1))
        assert served_rest(served) == publish(handle, 1)
    assert served.kernel.served == 0


def test_a_message_of_a_transaction_or_a_settlement_is_not_served_inline(served: ServedRouter) -> None:
    handle = served.publisher(1)
    for data in (encode_publish(handle, 1, [message()], transaction=5), encode_settle(1, [(1, 1, 1)])):
        served.client.sendall(data)
        assert served_rest(served) == data


def test_a_message_that_needs_several_reads_is_returned_to_the_loop_in_pieces(served: ServedRouter) -> None:
    handle = served.publisher(1)
    frame = publish(handle, 1, "x" * 100_000, "orders.old")
    served.client.sendall(frame)
    assert frame.startswith(served_rest(served))


def test_a_closed_connection_is_left_to_the_loop(served: ServedRouter) -> None:
    handle = served.publisher(1)
    assert served.serve(publish(handle, 1))
    assert served.kernel.is_next_ready
    served.client.close()
    assert not served_end(served)
    assert not served.kernel.is_next_ready


def served_end(served: ServedRouter) -> bytes:
    def work(journal: Any) -> None:
        owners = served.core.endpoints.matcher.owners
        served.rest = served.kernel.serve(journal, served._socket.fileno(), 1, owners, 0, 10**9)

    assert served.journal.writer.inline_commit(work) is not None
    return served.rest


# The disk fails


@pytest.mark.spec("REPL-1")
@pytest.mark.parametrize("device", [FULL, UNSYNCED])
def test_a_message_that_is_not_on_the_disk_is_neither_acknowledged_nor_delivered(
    served: ServedRouter, device: str
) -> None:
    handle = served.publisher(1)
    served.link(2)
    served.flow(2, "orders")
    assert served.serve(publish(handle, 1, "one", "orders.old"))
    assert served.outcomes(1) == {1: OUTCOME_STORED}
    assert texts(served.delivered(2)) == ["one"]
    writer = served.journal.writer
    with stopped(writer), broken_disk(writer, device):
        served.is_storing = False
        served.serve(publish(handle, 2, "two", "orders.old"))
        assert served.kernel.served == 2, "the disk failed on the inline path"
        assert served.outcomes(1) == {}
        assert served.delivered(2) == []
        assert writer.inline_commit(lambda _: pytest.fail("the journal is lent")) is None
    wait_until(lambda: writer.durable_sequence == writer.next_sequence - 1, "the disk to accept data again")
    served.is_storing = True
    served.store()
    assert served.outcomes(1) == {2: OUTCOME_STORED}
    assert texts(served.delivered(2)) == ["two"]
    served.publish(1, handle, 2, message("two", "orders.old"), message("three", "orders.old"))
    assert served.outcomes(1) == {2: OUTCOME_KNOWN, 3: OUTCOME_STORED}
    assert texts(served.delivered(2)) == ["three"]
    assert len(served.journal.records) == writer.durable_sequence


@contextmanager
def stopped(writer: JournalWriter) -> Iterator[None]:
    """No retry happens in between."""
    may_work = threading.Event()
    carry_out = writer._directory.carry_out

    def wait_and_carry_out(instruction: Any) -> Any:
        assert may_work.wait(PATIENCE_SECONDS)
        return carry_out(instruction)

    writer._directory.carry_out = wait_and_carry_out  # type: ignore[method-assign]
    try:
        yield
    finally:
        may_work.set()
