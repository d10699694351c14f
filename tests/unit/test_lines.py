"""Line arbitration, case by case."""

from collections.abc import Callable
from typing import TypeAlias

import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError
from penstock.feed import LineArbiter, LineConfig
from penstock.feed.core.lines.arbiter import (
    LineDatagram,
    LineDatagrams,
    LineHeard,
    LineInstruction,
    LineSilent,
    RequestRetransmission,
    SessionEnded,
    SessionStarted,
    SourceLost,
    SourceReady,
)
from penstock.feed.formats import MoldUDP64
from penstock.feed.formats.mold import encode_end, encode_packet
from penstock.wire import DatagramBatch

A, B, ANSWER = 0, 1, 2
MS = 1_000_000
SECOND = 1_000 * MS


def packet(first: int, count: int = 1, session: str = "s1") -> bytes:
    return encode_packet(session, first, [b"%d" % n for n in range(first, first + count)])


def heartbeat(next_sequence: int, session: str = "s1") -> bytes:
    return encode_packet(session, next_sequence, [])


class Plant:
    """An arbiter and the time."""

    def __init__(self, **values: object) -> None:
        self.arbiter = LineArbiter(LineConfig(**values), MoldUDP64())  # type: ignore[arg-type]
        self.now_ns = 10 * SECOND

    def hear(self, line: int, data: bytes) -> list[object]:
        return told(self.arbiter.handle(LineDatagram(line, data), self.now_ns))

    def hear_batch(self, line: int, data: bytes) -> list[object]:
        """The same arbiter, with batches on the compiled path."""
        batch = DatagramBatch(1)
        batch.append(data, ("exchange", 1), socket=line)
        return told(self.arbiter.handle(LineDatagrams(batch), self.now_ns))

    def hear_lane(self, line: int, data: bytes) -> list[object]:
        """Read as a lane does: packets of the compiled path do not reach the core."""
        batch = DatagramBatch(1)
        batch.append(data, ("exchange", 1), socket=line)
        cursor = self.arbiter.cursor
        cursor.reset_batches()
        ready = cursor.take(batch, 0, self.now_ns)
        if cursor.index == len(batch):
            return told([SourceReady(ready)] if ready is not None else [])
        return told(self.arbiter.handle(LineDatagrams(batch), self.now_ns))

    def wait(self, ms: float) -> list[object]:
        """All instructions until this much time has passed."""
        end_ns = self.now_ns + round(ms * MS)
        said: list[object] = []
        while (deadline_ns := self.arbiter.next_deadline_ns()) is not None and deadline_ns <= end_ns:
            self.now_ns = max(self.now_ns, deadline_ns)
            said += told(self.arbiter.handle(Tick(), self.now_ns))
        self.now_ns = end_ns
        return said


Take: TypeAlias = Callable[[Plant, int, bytes], list[object]]


def told(instructions: list[LineInstruction]) -> list[object]:
    """Comparable instructions: ready messages as their numbers."""
    said: list[object] = []
    for each in instructions:
        if isinstance(each, SourceReady):
            assert all(int(content) == sequence for sequence, content in each.batch)
            said += [sequence for sequence, _ in each.batch]
        else:
            said.append(each)
    return said


@pytest.mark.spec("FEED-7")
def test_the_first_copy_wins() -> None:
    plant = Plant()
    assert plant.hear(A, packet(1, 3)) == [SessionStarted("s1", 1), 1, 2, 3]
    assert plant.hear(B, packet(1, 3)) == []
    assert plant.hear(B, packet(3, 3)) == [4, 5]
    assert plant.hear(A, packet(4, 2)) == []
    health = plant.arbiter.health()
    assert [(each.datagrams, each.first_copies, each.duplicates) for each in health] == [(2, 3, 2), (2, 2, 4)]
    assert plant.arbiter.counters["source_messages"] == 5
    assert plant.arbiter.counters["source_duplicates"] == 6


@pytest.mark.spec("FEED-7")
def test_a_gap_is_filled_from_the_other_line_without_a_request() -> None:
    plant = Plant()
    plant.hear(A, packet(1))
    assert plant.hear(A, packet(4, 2)) == []
    assert plant.hear(B, packet(2, 2)) == [2, 3, 4, 5]
    assert plant.wait(100) == []


@pytest.mark.spec("FEED-7")
def test_messages_missing_on_both_lines_are_requested_and_inserted_in_order() -> None:
    plant = Plant()
    plant.hear(A, packet(1))
    plant.hear(A, packet(5))
    assert plant.wait(1.9) == []
    assert plant.wait(0.2) == [RequestRetransmission("s1", 2, 3)]
    assert plant.hear(ANSWER, packet(2, 2)) == [2, 3]
    assert plant.wait(0) == [RequestRetransmission("s1", 4, 1)], "the rest is requested at once"
    assert plant.hear(ANSWER, packet(4)) == [4, 5]
    assert plant.wait(1_000) == []


@pytest.mark.spec("FEED-7")
def test_an_unanswered_request_is_repeated_a_bounded_number_of_times_and_then_reported_lost() -> None:
    plant = Plant(request_attempts_max=3, request_retry_ms=10)
    plant.hear(A, packet(1))
    plant.hear(B, packet(4))
    request = RequestRetransmission("s1", 2, 2)
    assert plant.wait(2) == [request]
    assert plant.wait(10) == [request]
    assert plant.wait(19) == []
    assert plant.wait(1) == [request]
    assert plant.wait(40) == [SourceLost(2, 3, Cause.NO_ANSWER), 4]
    assert plant.hear(B, packet(2, 2)) == [], "too late"
    assert plant.arbiter.counters.by_cause("source_messages_lost") == {"no_answer": 2}
    assert plant.arbiter.counters["retransmissions_requested"] == 3


def test_a_heartbeat_reveals_the_loss_of_the_last_messages() -> None:
    plant = Plant()
    plant.hear(A, packet(1))
    assert plant.hear(B, heartbeat(4)) == []
    assert plant.wait(3) == [RequestRetransmission("s1", 2, 2)]
    assert plant.hear(ANSWER, packet(2, 2)) == [2, 3]


def test_a_live_join_requests_no_earlier_messages_and_a_join_at_the_start_does() -> None:
    assert Plant().hear(A, packet(100)) == [SessionStarted("s1", 100), 100]
    assert Plant().hear(A, heartbeat(100)) == [SessionStarted("s1", 100)]
    plant = Plant(join="start")
    assert plant.hear(A, packet(100)) == [SessionStarted("s1", 1)]
    assert plant.wait(3) == [RequestRetransmission("s1", 1, 99)]


@pytest.mark.spec("FEED-1")
def test_a_session_ends_when_it_is_complete_and_the_next_begins_at_one() -> None:
    plant = Plant(request_attempts_max=1, request_retry_ms=10)
    plant.hear(A, packet(1))
    assert plant.hear(A, encode_end("s1", 3)) == []
    assert plant.wait(3) == [RequestRetransmission("s1", 2, 1)]
    assert plant.hear(B, packet(2)) == [2, SessionEnded("s1", 3)]
    assert plant.hear(B, encode_end("s1", 3)) == [], "a session that has ended stays ended"
    assert plant.arbiter.counters.by_cause("packets_dropped") == {"stale_epoch": 1}
    assert plant.hear(B, packet(2, session="s2")) == [SessionStarted("s2", 1)]
    assert plant.hear(A, packet(1, session="s2")) == [1, 2]


def test_another_session_that_persists_ends_the_previous_one_and_its_missing_messages_are_lost() -> None:
    plant = Plant(jump_wait_ms=50, gap_wait_us=100_000)
    plant.hear(A, packet(1))
    plant.hear(A, packet(3))
    assert plant.hear(A, packet(1, session="s2")) == []
    plant.wait(49)
    assert plant.hear(A, packet(2, session="s2")) == []
    plant.wait(1)
    begin = [SourceLost(2, 2, Cause.RESTARTED), 3, SessionEnded("s1", 4), SessionStarted("s2", 1)]
    assert plant.hear(B, packet(2, 2, session="s2")) == [*begin, 1, 2, 3], "the messages from before were waiting"
    assert plant.hear(B, packet(2)) == [], "a straggler of the ended session"
    assert plant.arbiter.counters.by_cause("packets_dropped") == {"stale_epoch": 1}


@pytest.mark.spec("FEED-8")
@pytest.mark.parametrize("takes", [Plant.hear, Plant.hear_batch, Plant.hear_lane])
def test_stray_datagrams_of_another_session_do_not_end_the_current_one(takes: Take) -> None:
    plant = Plant()
    takes(plant, A, packet(1))
    for number in range(2, 6):
        assert takes(plant, B, packet(1, session="stray")) == []
        plant.now_ns += 2 * SECOND
        assert takes(plant, A, heartbeat(number)) == [], "a heartbeat is enough"
        assert takes(plant, A, packet(number)) == [number]
    assert plant.arbiter.counters.by_cause("packets_dropped") == {"stale_epoch": 4}


def test_a_single_datagram_of_another_session_after_long_silence_changes_nothing() -> None:
    plant = Plant()
    plant.hear(A, packet(1))
    plant.now_ns += 60 * SECOND
    assert plant.hear(B, packet(1, session="stray")) == []
    assert plant.hear(A, packet(2)) == [2]


def test_a_receiver_that_joined_on_a_stray_datagram_finds_the_source() -> None:
    plant = Plant(jump_wait_ms=50)
    plant.hear(B, packet(1, session="stray"))
    assert plant.hear(A, packet(1)) == []
    plant.wait(50)
    assert plant.hear(A, packet(2)) == [SessionEnded("stray", 2), SessionStarted("s1", 1), 1, 2]


def test_a_single_datagram_far_ahead_changes_nothing() -> None:
    plant = Plant(window_messages_max=16)
    plant.hear(A, packet(1))
    assert plant.hear(B, packet(10**15)) == []
    assert plant.wait(0) == [RequestRetransmission("s1", 2, 16)]
    assert plant.hear(A, packet(2)) == [2]
    assert plant.wait(2_500) == []
    assert plant.hear(B, packet(10**15)) == []
    assert plant.hear(A, packet(3)) == [3]
    assert plant.arbiter.counters.by_cause("packets_dropped") == {"window": 2}


@pytest.mark.parametrize("takes", [Plant.hear, Plant.hear_batch, Plant.hear_lane])
def test_datagrams_far_ahead_between_heartbeats_change_nothing_and_cause_ever_fewer_requests(takes: Take) -> None:
    plant = Plant(window_messages_max=16, request_attempts_max=3)
    takes(plant, A, packet(1))
    asked = []
    for _ in range(10):
        assert takes(plant, B, packet(10**15)) == []
        asked.append(len([each for each in plant.wait(10) if isinstance(each, RequestRetransmission)]))
        assert takes(plant, A, heartbeat(2)) == []
        plant.now_ns += 30 * SECOND
    assert asked == [1, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert takes(plant, A, packet(2)) == [2]
    takes(plant, B, packet(10**15))
    assert plant.wait(0) == [RequestRetransmission("s1", 3, 16)], "progress was made"
    assert plant.wait(19) == []
    assert plant.wait(1) == [RequestRetransmission("s1", 3, 16)]
    assert plant.wait(39) == []
    assert plant.wait(1) == [RequestRetransmission("s1", 3, 16)]
    assert plant.wait(500) == []


def test_after_a_long_break_it_continues_at_the_position_of_the_source_and_reports_the_loss() -> None:
    plant = Plant(window_messages_max=16, jump_wait_ms=50)
    plant.hear(A, packet(1))
    plant.hear(A, packet(3))
    assert plant.hear(A, packet(1_000)) == []
    plant.wait(49)
    assert plant.hear(A, packet(1_001)) == []
    plant.wait(1)
    expected = [SourceLost(2, 2, Cause.WINDOW), 3, SourceLost(4, 1_001, Cause.WINDOW), 1_002, 1_003]
    assert plant.hear(B, packet(1_002, 2)) == expected
    assert plant.hear(A, packet(1_004)) == [1_004]


def test_after_a_long_break_a_request_server_supplies_all_missing_messages() -> None:
    plant = Plant(window_messages_max=16, jump_wait_ms=1_000)
    plant.hear(A, packet(1))
    received: list[object] = []
    at = 100
    while at < 400 and plant.arbiter.next_sequence < at:
        received += plant.hear(A, packet(at))
        for asked in plant.wait(1):
            if isinstance(asked, RequestRetransmission):
                received += plant.hear(ANSWER, packet(asked.first, min(asked.count, 10)))
            else:
                received.append(asked)
        at += 1
    assert [each for each in received if not isinstance(each, RequestRetransmission)] == list(range(2, at))


def test_a_source_that_restarts_its_numbers_under_the_same_name_is_detected() -> None:
    plant = Plant(reset_wait_ms=2_000)
    plant.hear(A, packet(1, 20))
    said: list[object] = []
    for number in range(1, 6):
        said += plant.wait(1_000)
        said += plant.hear(A, packet(number))
        said += plant.hear(B, packet(number))
    assert SessionEnded("s1", 21) in said
    started = said.index(SessionStarted("s1#2", 1, is_reset=True))
    assert plant.arbiter.counters["source_resets"] == 1
    after = [each for each in said[started + 1 :] if not isinstance(each, RequestRetransmission)]
    assert after == [SourceLost(1, 2, Cause.NO_ANSWER), 3, 4, 5]
    assert plant.arbiter.restart() == [SessionEnded("s1#2", 6)]
    assert plant.hear(A, packet(1)) == [SessionStarted("s1#3", 1, is_reset=True), 1]
    assert plant.hear(A, encode_end("s1", 2)) == [SessionEnded("s1#3", 2)]
    assert plant.hear(A, packet(1, session="s2")) == [SessionStarted("s2", 1), 1]


def test_a_quiet_market_is_not_a_reset() -> None:
    plant = Plant(reset_wait_ms=2_000)
    plant.hear(A, packet(1, 20))
    for _ in range(20):
        assert plant.hear(A, heartbeat(21)) == []
        assert plant.hear(B, heartbeat(21)) == []
        assert plant.wait(900) == []


def test_a_silent_line_is_reported_once_and_its_return_too() -> None:
    plant = Plant(silent_ms=1_000)
    plant.arbiter.handle(Tick(), plant.now_ns)
    plant.hear(A, packet(1))
    said: list[object] = []
    for number in range(2, 7):
        said += plant.wait(500)
        plant.hear(A, packet(number))
    assert said == [LineSilent(B)]
    assert [each.is_silent for each in plant.arbiter.health()] == [False, True]
    plant.hear(B, heartbeat(7))
    assert plant.wait(250) == [LineHeard(B)]
    assert plant.arbiter.counters["lines_silent"] == 1


def test_a_receiver_that_was_paused_does_not_report_others_as_silent() -> None:
    plant = Plant(silent_ms=1_000)
    plant.hear(A, packet(1))
    plant.hear(B, packet(1))
    plant.now_ns += 30 * SECOND
    assert told(plant.arbiter.handle(Tick(), plant.now_ns)) == []


@pytest.mark.spec("FEED-8")
def test_hostile_datagrams_are_counted_by_cause_and_dropped() -> None:
    plant = Plant()
    plant.hear(A, packet(1))
    hostile = [b"", b"x" * 19, packet(2)[:-1], packet(2) + b"x", b"\xff" * 22, packet(0), heartbeat(0), packet(2**63)]
    for data in hostile:
        assert plant.hear(B, data) == []
    assert plant.arbiter.counters.by_cause("packets_dropped") == {
        "truncated": 3, "length": 4, "foreign": 1,
    }  # fmt: skip
    assert plant.hear(A, packet(2)) == [2]


def test_the_kernels_receive_times_stay_with_the_messages() -> None:
    arbiter = LineArbiter(LineConfig(), MoldUDP64())
    batch = DatagramBatch(4)
    for first, line in ((1, A), (1, B), (3, A), (2, B)):
        batch.append(packet(first), ("exchange", line), 100 + first, line)
    times = {}
    for each in arbiter.handle(LineDatagrams(batch), 0):
        if isinstance(each, SourceReady):
            times |= {sequence: each.batch.receive_ns(n) for n, (sequence, _) in enumerate(each.batch)}
    assert times == {1: 101, 2: 102, 3: 103}


def test_mistakes_of_the_caller_are_refused() -> None:
    with pytest.raises(LocalProtocolError):
        LineArbiter(LineConfig(), MoldUDP64(), lines=8)
    with pytest.raises(LocalProtocolError):
        LineArbiter(LineConfig(), MoldUDP64()).handle(LineDatagram(-1, packet(1)), 0)
    with pytest.raises(LocalProtocolError):
        LineArbiter(LineConfig(), MoldUDP64()).handle("nonsense", 0)  # type: ignore[arg-type]
