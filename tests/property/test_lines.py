"""With any losses, repetitions and order on two lines: every message once and in order, or reported lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.core import Tick
from penstock.feed.config import LineConfig
from penstock.feed.core.lines.arbiter import (
    LineArbiter,
    LineDatagram,
    LineDatagrams,
    LineInstruction,
    RequestRetransmission,
    SessionEnded,
    SourceLost,
    SourceReady,
)
from penstock.feed.formats.datagram import Segment
from penstock.feed.formats.iextp import DEEP_1_0, IexStream, IexTp, encode_segment
from penstock.feed.formats.mold import MoldUDP64, encode_end, encode_packet
from penstock.wire import DatagramBatch

SESSION = "day1"
REQUEST_LINE = 2
MS = 1_000_000


def message(sequence: int) -> bytes:
    return f"message {sequence}".encode() * (1 + sequence % 3)


class Outcome:
    """The output of an arbiter as one sequence: numbers with their bytes, or lost ranges."""

    def __init__(self, first: int) -> None:
        self.next_sequence = first
        self.delivered: dict[int, bytes] = {}
        self.lost: set[int] = set()
        self.has_ended = False

    def take(self, instructions: list[LineInstruction]) -> list[RequestRetransmission]:
        requests = []
        for instruction in instructions:
            match instruction:
                case SourceReady():
                    for sequence, content in instruction.batch:
                        assert sequence == self.next_sequence
                        self.delivered[sequence] = content
                        self.next_sequence += 1
                case SourceLost():
                    assert instruction.first == self.next_sequence
                    self.lost |= set(range(instruction.first, instruction.last + 1))
                    self.next_sequence = instruction.last + 1
                case RequestRetransmission():
                    assert instruction.session == SESSION
                    requests.append(instruction)
                case SessionEnded():
                    assert instruction.next_sequence == self.next_sequence
                    self.has_ended = True
        return requests


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[int, list[tuple[int, int, int]]]:
    """The number of messages, and the datagrams (line, first, count) in their order of arrival."""
    total = draw(st.integers(1, 40))
    arriving: list[tuple[float, int, int, int]] = []
    for line in (0, 1):
        at = 1
        while at <= total:
            count = min(draw(st.integers(1, 6)), total + 1 - at)
            copies = draw(st.sampled_from([0, 1, 1, 1, 2]))
            arriving += [(at + draw(st.floats(0, 12)), line, at, count) for _ in range(copies)]
            at += count
    return total, [(line, first, count) for _, line, first, count in sorted(arriving)]


def packet(first: int, count: int) -> bytes:
    return encode_packet(SESSION, first, [message(n) for n in range(first, first + count)])


@pytest.mark.spec("FEED-1", "FEED-7")
@given(deliveries(), st.sets(st.integers(1, 40)), st.lists(st.booleans(), min_size=1))
def test_every_message_once_and_in_order_or_reported_lost(
    flow: tuple[int, list[tuple[int, int, int]]], answerable: set[int], batching: list[bool]
) -> None:
    total, datagrams = flow
    arbiter = LineArbiter(LineConfig(join="start"), MoldUDP64())
    outcome = Outcome(1)
    now_ns = 0
    came: set[int] = set()
    batch = DatagramBatch(8)
    for number, (line, first, count) in enumerate(datagrams):
        now_ns += 1_000
        came |= set(range(first, first + count))
        if batching[number % len(batching)]:
            batch.clear()
            batch.append(packet(first, count), ("exchange", line), socket=line)
            outcome.take(arbiter.handle(LineDatagrams(batch), now_ns))
        else:
            outcome.take(arbiter.handle(LineDatagram(line, packet(first, count)), now_ns))
    outcome.take(arbiter.handle(LineDatagram(0, encode_end(SESSION, total + 1)), now_ns))
    for _ in range(1_000):
        if outcome.has_ended:
            break
        deadline_ns = arbiter.next_deadline_ns()
        assert deadline_ns is not None
        now_ns = max(now_ns, deadline_ns)
        for request in outcome.take(arbiter.handle(Tick(), now_ns)):
            first, count = request.first, 0
            while first + count in answerable and first + count <= total and count < min(request.count, 4):
                count += 1
            if count:
                came |= set(range(first, first + count))
                outcome.take(arbiter.handle(LineDatagram(REQUEST_LINE, packet(first, count)), now_ns))
    assert outcome.has_ended
    assert outcome.next_sequence == total + 1
    assert outcome.delivered == {sequence: message(sequence) for sequence in came}
    assert outcome.lost == set(range(1, total + 1)) - came


class Spelled:
    """The same format under another name, so that the compiled code for the format is not used."""

    name = "spelled"
    kind = 0

    def __init__(self, framing: MoldUDP64 | IexTp) -> None:
        self._framing = framing

    def decode(self, data: bytes) -> Segment:
        return self._framing.decode(data)

    def encode_request(self, session: str, first_sequence: int, count: int) -> bytes:
        return self._framing.encode_request(session, first_sequence, count)


STREAM = IexStream(DEEP_1_0, 1, 99)
HOSTILE = [b"", b"\xff" * 40, packet(5, 2)[:-1], packet(3, 1) + b"x", b"day1".ljust(10) + bytes(10)]


@pytest.mark.parametrize("framing", [MoldUDP64(), IexTp()])
@given(deliveries(), st.integers(1, 16), st.lists(st.sampled_from([None, *HOSTILE]), min_size=1))
def test_the_fast_path_gives_what_the_slow_one_gives(
    framing: MoldUDP64 | IexTp,
    flow: tuple[int, list[tuple[int, int, int]]],
    batch_size: int,
    hostile: list[bytes | None],
) -> None:
    total, datagrams = flow
    config = LineConfig(join="start", request_attempts_max=0)
    fast, slow = LineArbiter(config, framing), LineArbiter(config, Spelled(framing))
    stories: list[list[object]] = [[], []]
    batch = DatagramBatch(16)

    def tell(now_ns: int) -> None:
        for arbiter, story in zip((fast, slow), stories, strict=True):
            for instruction in arbiter.handle(LineDatagrams(batch), now_ns) + arbiter.handle(Tick(), now_ns):
                if isinstance(instruction, SourceReady):
                    story += list(instruction.batch)
                else:
                    story.append(instruction)
        batch.clear()

    for number, (line, first, count) in enumerate(datagrams):
        messages = [message(n) for n in range(first, first + count)]
        is_mold = isinstance(framing, MoldUDP64)
        bad = hostile[number % len(hostile)]
        batch.append(
            encode_packet(SESSION, first, messages) if is_mold else encode_segment(STREAM, first, messages),
            ("exchange", line),
            number,
            line,
        )
        if bad is not None and len(batch) < 16:
            batch.append(bad, ("stranger", 1), number, 1)
        if len(batch) >= batch_size:
            tell(number * MS)
    tell(total * 10 * MS)
    assert stories[0] == stories[1]
    assert fast.health() == slow.health()
    assert fast.next_sequence == slow.next_sequence
    assert dict(fast.counters.by_cause("packets_dropped")) == dict(slow.counters.by_cause("packets_dropped"))
    assert fast.counters["source_messages"] == slow.counters["source_messages"]
