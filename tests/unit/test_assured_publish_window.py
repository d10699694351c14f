"""Messages of a publisher before their acknowledgement: windows, resends, outcomes, transactions (REPL-1, -3, -10)."""

from collections import deque

import pytest

from penstock.assured.core.session._publish_window import PublishWindow
from penstock.assured.wire._layout import OUTCOME_FULL, OUTCOME_STORED, OUTCOME_SYNC, OUTCOME_TRANSACTION
from penstock.assured.wire.frames import Publish, decode_frames, encode_acknowledge
from penstock.base.errors import LimitError, LocalProtocolError, RemoteProtocolError

MIB = 1024 * 1024


def put(window: PublishWindow, payload: bytes = b"x", *, topic: str = "orders.new", transaction: int = 0) -> int:
    return window.put(topic, payload, 4, 0, 0, 0, 0, transaction)


def acknowledge(window: PublishWindow, *runs: tuple[int, int, int]) -> list[tuple[int, int, int]]:
    return window.acknowledge(encode_acknowledge(1, list(runs))[4:])


def sent(window: PublishWindow, handle: int = 1) -> list[tuple[int, int, int]]:
    """First and last number of each frame, and its transaction."""
    frames = decode_frames(window.take(handle))
    found = []
    for frame in frames:
        assert isinstance(frame, Publish)
        found.append((frame.first_number, frame.first_number + len(frame.messages) - 1, frame.transaction))
    return found


def test_messages_are_numbered_and_sent_once() -> None:
    window = PublishWindow(8, MIB)
    assert [put(window, bytes([number])) for number in range(3)] == [1, 2, 3]
    (frame,) = decode_frames(window.take(5))
    assert isinstance(frame, Publish)
    assert (frame.publisher, frame.first_number, frame.transaction) == (5, 1, 0)
    assert [(each.topic, each.payload) for each in frame.messages] == [
        (b"orders.new", bytes([number])) for number in range(3)
    ]
    assert window.take(5) == b""
    assert put(window) == 4
    assert sent(window) == [(4, 4, 0)]


def test_the_window_is_full_until_the_oldest_message_is_acknowledged() -> None:
    window = PublishWindow(4, MIB)
    assert [put(window) for _ in range(5)] == [1, 2, 3, 4, 0]
    sent(window)
    acknowledge(window, (2, 4, OUTCOME_STORED))
    assert (window.room, put(window)) == (0, 0)
    acknowledge(window, (1, 1, OUTCOME_SYNC))
    assert (window.room, window.unresolved) == (4, 5)
    assert [window.outcome_of(number) for number in range(1, 5)] == [3, 1, 1, 1]
    assert put(window) == 5


def test_the_window_is_also_bounded_by_bytes() -> None:
    window = PublishWindow(100, 1_000)
    assert put(window, bytes(2_000)) == 1
    assert put(window) == 0
    sent(window)
    acknowledge(window, (1, 1, OUTCOME_STORED))
    assert put(window) == 2


def test_after_a_reconnect_messages_without_an_outcome_are_sent_again() -> None:
    window = PublishWindow(16, MIB)
    for _ in range(8):
        put(window)
    sent(window)
    acknowledge(window, (1, 2, OUTCOME_STORED), (5, 5, OUTCOME_STORED))
    window.rewind()
    put(window)
    assert sent(window, 9) == [(3, 4, 0), (6, 9, 0)]
    acknowledge(window, (3, 9, OUTCOME_STORED))
    assert window.unresolved == window.next_number == 10


def test_refusals_are_reported_and_counted() -> None:
    window = PublishWindow(16, MIB)
    for _ in range(4):
        put(window)
    sent(window)
    assert acknowledge(window, (1, 2, OUTCOME_STORED), (3, 4, OUTCOME_FULL)) == [(3, 4, OUTCOME_FULL)]
    assert (window.refused, window.outcome_of(3)) == (2, OUTCOME_FULL)
    assert window.outcome_counts() == {OUTCOME_STORED: 2, OUTCOME_FULL: 2}


def test_an_acknowledgement_of_an_unsent_message_is_an_error_of_the_router() -> None:
    window = PublishWindow(16, MIB)
    put(window)
    with pytest.raises(RemoteProtocolError, match="not sent"):
        acknowledge(window, (1, 1, OUTCOME_STORED))
    sent(window)
    with pytest.raises(RemoteProtocolError, match="not sent"):
        acknowledge(window, (1, 2**63, OUTCOME_STORED))
    for junk in (b"", b"\x02", encode_acknowledge(1, [(1, 1, 1)])[4:-1]):
        with pytest.raises(RemoteProtocolError):
            window.acknowledge(junk)
    acknowledge(window, (1, 1, OUTCOME_STORED))
    acknowledge(window, (1, 1, OUTCOME_FULL))
    assert window.outcome_of(1) == OUTCOME_STORED, "the first outcome is final"


def test_messages_of_a_transaction_have_their_own_frames_and_one_outcome() -> None:
    window = PublishWindow(16, MIB)
    put(window)
    put(window, transaction=7)
    put(window, transaction=7)
    put(window)
    assert sent(window) == [(1, 1, 0), (2, 3, 7), (4, 4, 0)]
    window.end_transaction(7, OUTCOME_TRANSACTION)
    window.rewind()
    assert sent(window) == [(1, 1, 0), (4, 4, 0)]
    assert window.outcome_of(2) == OUTCOME_TRANSACTION


def test_frames_have_a_maximum_length() -> None:
    window = PublishWindow(4_096, 64 * MIB)
    for _ in range(10):
        put(window, bytes(100_000))
    assert [last - first + 1 for first, last, _ in sent(window)] == [2] * 5


def test_messages_that_no_router_accepts_are_refused_at_once() -> None:
    window = PublishWindow(4, MIB)
    with pytest.raises(LimitError):
        put(window, bytes(9 * MIB))
    with pytest.raises(LimitError):
        put(window, topic="t" * 256)
    with pytest.raises(LocalProtocolError):
        window.put("t", b"", 10, 0, 0, 0, 0, 0)
    assert window.next_number == 1
    with pytest.raises(LimitError):
        PublishWindow(5_000, MIB)
    with pytest.raises(LocalProtocolError):
        window.outcome_of(1)


def test_a_known_publisher_continues_its_numbers() -> None:
    window = PublishWindow(4, MIB)
    window.begin_at(101)
    assert put(window) == 101
    with pytest.raises(LocalProtocolError):
        window.begin_at(5)


def test_awaited_messages_are_removed_with_their_outcome_in_any_order() -> None:
    window = PublishWindow(16, MIB)
    for _ in range(6):
        put(window)
    sent(window)
    awaited = {number: f"task {number}" for number in (2, 3, 4, 6)}
    answered: deque[tuple[str, int, int]] = deque()
    window.take_outcomes(awaited, answered)
    assert not answered
    acknowledge(window, (3, 3, OUTCOME_FULL))
    window.take_outcomes(awaited, answered)
    assert list(answered) == [("task 3", 3, OUTCOME_FULL)]
    acknowledge(window, (1, 4, OUTCOME_STORED))
    window.take_outcomes(awaited, answered)
    assert [number for _, number, _ in answered] == [3, 2, 4]
    assert awaited == {6: "task 6"}
    assert window.answered == 5
