"""The session sender: frames of events and control messages to ready and blocked sockets."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import pytest

from penstock.base.errors import LimitError, LocalProtocolError
from penstock.engine import DistributionEngine, Event, SessionBuffer, read_events
from penstock.engine.control import EVENTS_SIZE_MAX, PROTOCOL, Events
from penstock.engine.core.events import Detach
from penstock.engine.core.kernel._event import EVENT_SIZE_MAX, EventKind
from penstock.net.core.framing import FrameDecoder
from penstock.plant.live._session_sender import Framing, SessionSender
from unit.engine_kit import NOW, QUOTE, buffer_consumer, engine, record, told

MS = 1_000_000
TOPIC = b"md.us.eq.AAPL.quote"
PLENTY = 1 << 20


class Line(SimpleNamespace):
    session: int
    ours: socket.socket
    theirs: socket.socket
    buffer: SessionBuffer

    def received(self) -> bytes:
        data = b""
        while True:
            try:
                piece = self.theirs.recv(PLENTY)
            except BlockingIOError:
                return data
            if not piece:
                return data
            data += piece


@contextmanager
def line(
    session_sender: SessionSender,
    core: DistributionEngine,
    number: int = 0,
    framing: Framing = Framing.WEBSOCKET_MESSAGE,
    *,
    capacity: int = PLENTY,
    send_size: int = 0,
) -> Iterator[Line]:
    """A session and its consumer of the same number, which subscribes to all topics."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        if send_size:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_size)
        session_sender.open(number, ours.fileno())
        buffer, _ = buffer_consumer(core, number, "md.>", capacity=capacity)
        session_sender.attach(number, number, buffer, framing)
        yield Line(session=number, ours=ours, theirs=theirs, buffer=buffer)


def made(gather_ns: int = 0, words_size_max: int = 1_000) -> SessionSender:
    return SessionSender(8, 8, gather_ns=gather_ns, words_size_max=words_size_max)


def publish(core: DistributionEngine, *values: int) -> None:
    for value in values:
        core.publish(TOPIC, QUOTE, record(value), NOW)


def messages(data: bytes) -> list[bytes]:
    """The payloads of WebSocket messages, each of one unmasked binary frame, decoded by a separate implementation."""
    found = []
    while data:
        assert data[0] == 0x82
        size, at = data[1], 2
        if size == 126:
            size, at = int.from_bytes(data[2:4], "big"), 4
            assert size > 125
        elif size == 127:
            size, at = int.from_bytes(data[2:10], "big"), 10
            assert size > 0xFFFF
        found.append(data[at : at + size])
        assert len(found[-1]) == size
        data = data[at + size :]
    return found


def values(events: list[Event]) -> list[int]:
    return [value for kind, value in told(events) if kind == EventKind.UPDATE]


@pytest.mark.spec("EDGE-1")
def test_waiting_events_are_sent_in_one_message() -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core) as screen:
        publish(core, *range(100))
        assert session_sender.notice(core.take_ready(), NOW) == []
        session_sender.run(NOW)
        (message,) = messages(screen.received())
        assert values(read_events(message)) == list(range(100))
        assert (session_sender.frames, len(screen.buffer)) == (1, 0)


@pytest.mark.spec("EDGE-1")
def test_when_more_is_waiting_than_can_be_sent_all_sessions_are_served_in_turn() -> None:
    crowd = 270  # more than one run sends to
    core, session_sender = engine(), SessionSender(crowd, crowd, gather_ns=0, words_size_max=1_000)
    with ExitStack() as stack:
        screens = [stack.enter_context(line(session_sender, core, number)) for number in range(crowd)]
        served = [0] * crowd
        for value in range(20):
            publish(core, value)
            session_sender.notice(core.take_ready(), NOW)
            session_sender.run(NOW)
            for screen in screens:
                served[screen.session] += sum(len(values(read_events(each))) for each in messages(screen.received()))
        assert sum(served) < 20 * crowd
        assert min(served) >= 18


@pytest.mark.parametrize("count", [1, 100, 1_500])
def test_long_blocks_are_divided_between_events(count: int) -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core) as screen:
        publish(core, *range(count))
        session_sender.notice(core.take_ready(), NOW)
        data = b""
        while len(screen.buffer):
            session_sender.run(NOW)
            data += screen.received()
        session_sender.run(NOW)
        while piece := screen.received():  # bytes that the socket did not accept at once
            data += piece
            session_sender.run(NOW)
        found = messages(data)
        assert all(len(message) <= EVENTS_SIZE_MAX for message in found)
        assert [value for message in found for value in values(read_events(message))] == list(range(count))


@pytest.mark.spec("EDGE-1")
def test_on_tcp_events_are_a_control_message() -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core, framing=Framing.EVENTS_MESSAGE) as screen:
        publish(core, 1, 2, 3)
        session_sender.notice(core.take_ready(), NOW)
        session_sender.run(NOW)
        (frame,) = FrameDecoder(1 << 20).feed(screen.received())
        message = PROTOCOL.decode(frame)
        assert isinstance(message, Events)
        assert values(read_events(message.data)) == [1, 2, 3]


def test_control_messages_are_never_inserted_into_a_frame_of_events() -> None:
    core, session_sender = engine(), made(words_size_max=100_000)
    word = b"\x82\x04word"
    with line(session_sender, core, send_size=4_096) as screen:
        publish(core, *range(500))
        session_sender.notice(core.take_ready(), NOW)
        session_sender.run(NOW)
        data = b""
        for _ in range(100):
            session_sender.say(0, word, NOW)
            data += screen.received()
            session_sender.run(NOW)
        while piece := screen.received():
            data += piece
            session_sender.run(NOW)
        found = messages(data)
        assert found.count(b"word") == 100
        assert [value for each in found if each != b"word" for value in values(read_events(each))] == list(range(500))


def test_a_blocked_session_delays_no_other() -> None:
    core, session_sender = engine(history_bytes=65_536), made()
    with (
        line(session_sender, core, 0, capacity=EVENT_SIZE_MAX, send_size=4_096) as stopped,
        line(session_sender, core, 1) as quick,
    ):
        data = b""
        for value in range(3_000):
            publish(core, value)
            session_sender.notice(core.take_ready(), NOW + value)
            session_sender.run(NOW + value)
            data += quick.received()
        seen = [value for message in messages(data) for value in values(read_events(message))]
        assert seen == list(range(3_000))
        assert len(stopped.buffer) <= EVENT_SIZE_MAX
        assert session_sender.stuck(NOW + 3_000) == [(0, 0)]
        # it becomes ready: everything up to the loss, a receipt, the newest record
        late = b""
        while piece := stopped.received():
            late += piece
            session_sender.run(NOW + 3_001)
            core.serve(NOW + 3_001)
            session_sender.notice(core.take_ready(), NOW + 3_001)
            session_sender.run(NOW + 3_001)
        events = [event for message in messages(late) for event in read_events(message)]
        assert EventKind.RECEIPT in [event.kind for event in events]
        assert events[-1].version == 3_000
        assert session_sender.stuck(NOW + 3_002) == []


def test_last_messages_follow_the_remaining_events_and_precede_the_end() -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core, send_size=4_096) as screen:
        publish(core, *range(200))
        session_sender.notice(core.take_ready(), NOW)
        session_sender.run(NOW)
        session_sender.say(0, b"\x82\x03end", NOW)
        session_sender.finish(0, NOW)
        assert not session_sender.is_over(0)
        data = b""
        while piece := screen.received():
            data += piece
            session_sender.run(NOW)
        assert messages(data)[-1] == b"end"
        assert session_sender.is_over(0)
        assert screen.theirs.recv(1) == b""  # the end of the stream


def test_a_socket_whose_peer_is_gone_is_closed() -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core) as screen:
        screen.theirs.close()
        publish(core, 1)
        session_sender.notice(core.take_ready(), NOW)
        session_sender.run(NOW)
        assert session_sender.is_over(0)
        session_sender.say(0, b"nobody hears", NOW)


def test_a_closed_session_sends_nothing_and_its_number_can_be_reused() -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core, send_size=4_096) as first:
        publish(core, *range(500))
        session_sender.notice(core.take_ready(), NOW)
        session_sender.run(NOW)
        first.received()
        session_sender.shut(0)
        session_sender.run(NOW)
        assert first.received() == b""
        publish(core, 1)
        assert session_sender.notice(core.take_ready(), NOW) == [0]  # for another caller to send
        ours, theirs = socket.socketpair()
        with ours, theirs:
            session_sender.open(0, ours.fileno())
            session_sender.say(0, b"new", NOW)
            session_sender.shut(0)
            assert theirs.recv(10) == b"new"


def test_the_number_of_a_consumer_may_be_reused_before_its_session_is_closed() -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core, 0) as first:
        core.handle(Detach(0), NOW)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            session_sender.open(1, ours.fileno())
            buffer, _ = buffer_consumer(core, 0, "md.>")
            session_sender.attach(1, 0, buffer, Framing.WEBSOCKET_MESSAGE)
            session_sender.shut(0)
            publish(core, 1)
            assert session_sender.notice(core.take_ready(), NOW) == []
            session_sender.run(NOW)
            assert len(buffer) == 0
            assert first.received() == b""


def test_control_messages_are_bounded() -> None:
    core, session_sender = engine(), made(words_size_max=1_000)
    with line(session_sender, core, send_size=4_096), pytest.raises(LimitError):
        say_much(session_sender)


def say_much(session_sender: SessionSender) -> None:
    for _ in range(1_000):
        session_sender.say(0, b"x" * 1_000, NOW)


def test_mistakes_are_refused() -> None:
    core, session_sender = engine(), made()
    with line(session_sender, core) as screen:
        for mistake in (
            lambda: session_sender.open(0, screen.ours.fileno()),
            lambda: session_sender.open(8, screen.ours.fileno()),
            lambda: session_sender.say(1, b"x", NOW),
            lambda: session_sender.shut(7),
            lambda: session_sender.is_over(99),
            lambda: session_sender.attach(0, 0, screen.buffer, Framing.WEBSOCKET_MESSAGE),
        ):
            with pytest.raises(LocalProtocolError):
                mistake()


def test_a_consumer_with_the_number_of_a_former_one_is_not_mistaken_for_it() -> None:
    """The former session is closed later."""
    session_sender, core = made(), engine()
    with line(session_sender, core, number=3):
        core.handle(Detach(3), NOW)
        session_sender.detach(3)
        assert session_sender.notice([3], NOW) == [3]
        session_sender.detach(3)
        session_sender.shut(3)
