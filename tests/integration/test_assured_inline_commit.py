"""A live router that serves a publisher without its loop: concurrent requests, links that misbehave, failures."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from disk_kit import FULL, UNSYNCED, broken_disk
from integration import command_kit, patient_router
from integration.assured_kit import RouterHere, RouterProcess, client_of, router_config, router_here, router_process
from integration.failing_syncs import failing_syncs
from penstock.assured import EndpointConfig, Want
from penstock.assured.client import Assured, AssuredPublisher
from penstock.assured.wire._layout import OUTCOME_KNOWN, OUTCOME_STORED
from penstock.assured.wire.control import (
    ASSURED,
    MESSAGE_SIZE_MAX,
    Login,
    Message,
    OpenPublisher,
    PublisherOpened,
    Refused,
)
from penstock.assured.wire.frames import (
    Acknowledge,
    FrameSplitter,
    Published,
    decode_frames,
    encode_credit,
    encode_publish,
)
from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import RefusedError, UnreachableError
from penstock.journal import JournalConfig
from penstock.net._tcp import Receiver
from penstock.net.core.control import Hello, encode_session
from penstock.net.core.framing import encode_frame
from waiting import PATIENCE_SECONDS, wait_until

INLINE_COUNT = 20


@pytest.fixture(autouse=True)
def on_a_slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in patient_router.PATIENT:
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(command_kit, "COMMAND", [sys.executable, patient_router.__file__])
    monkeypatch.setattr(command_kit, "ORDINARY", None)  # do not fork a process without these settings


@pytest.fixture
def router(tmp_path: Path) -> Iterator[RouterProcess]:
    with router_process(router_config(tmp_path / "state"), tmp_path) as router:
        yield router


def committed_inline(router: RouterProcess) -> int:
    """Messages that the router has committed inline."""
    lines = [
        line for line in router.page("/metrics").splitlines() if "messages_committed_inline" in line and line[0] != "#"
    ]
    return sum(int(float(line.split()[-1])) for line in lines)


class Numbers:
    """Publishes consecutive numbers, each when the previous one is acknowledged."""

    def __init__(self, publisher: AssuredPublisher) -> None:
        self.publisher = publisher
        self.count = 0

    def publish(self, timeout: float = PATIENCE_SECONDS) -> None:
        self.publisher.publish("orders.new", b"%d" % self.count, timeout=timeout)
        self.count += 1

    def until_committed_inline(self, router: RouterProcess, count: int = INLINE_COUNT) -> None:
        """Publish until the router has committed some more messages inline."""
        end = committed_inline(router) + count
        deadline = time.monotonic() + PATIENCE_SECONDS
        while committed_inline(router) < end:
            assert time.monotonic() < deadline, "the inline path is not taken"
            for _ in range(50):
                self.publish()


def found_in(client: Assured, count: int) -> list[int]:
    with client.endpoint("orders", prefetch=4_096) as queue:
        found: list[int] = []
        while len(found) < count and (more := queue.take(4_096, PATIENCE_SECONDS)):
            found += [int(each.payload) for each in more]
            queue.ack(more)
    return found


@pytest.mark.spec("REPL-1")
def test_messages_are_stored_once_and_in_order(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(publisher)
        numbers.until_committed_inline(router, 100)
        assert client.endpoints("orders")[0].messages == numbers.count
        assert found_in(client, numbers.count) == list(range(numbers.count))


def test_a_consumer_gets_messages_in_their_order_while_they_are_published(router: RouterProcess) -> None:
    found: list[int] = []
    with client_of(router.place) as client, client_of(router.place) as other, client.publisher() as publisher:
        numbers = Numbers(publisher)
        numbers.until_committed_inline(router)
        with other.endpoint("orders", prefetch=64) as queue:

            def consume() -> None:
                while not found or found[-1] >= 0:
                    more = queue.take(64, PATIENCE_SECONDS)
                    found.extend(int(each.payload) for each in more)
                    queue.ack(more)

            consuming = threading.Thread(target=consume, daemon=True)
            consuming.start()
            for _ in range(1_000):
                numbers.publish()
            publisher.publish("orders.new", b"-1", timeout=PATIENCE_SECONDS)
            consuming.join(PATIENCE_SECONDS)
        assert found == [*range(numbers.count), -1]


def test_others_are_answered_meanwhile(router: RouterProcess) -> None:
    with client_of(router.place) as client, client_of(router.place) as other, client.publisher() as publisher:
        numbers = Numbers(publisher)
        numbers.until_committed_inline(router)
        is_over = threading.Event()

        def publish() -> None:
            while not is_over.is_set():
                numbers.publish()

        publishing = threading.Thread(target=publish, daemon=True)
        publishing.start()
        before = committed_inline(router)
        for count in range(20):
            other.create_endpoint(EndpointConfig(name=f"queue-{count}", wants=(Want(topics=("other",)),)))
            with other.publisher() as second:
                assert second.publish("other", b"", timeout=PATIENCE_SECONDS) == "stored"
            wait_until(
                lambda before=before: committed_inline(router) > before, "the first one to be committed inline again"
            )
            before = committed_inline(router)
        is_over.set()
        publishing.join(PATIENCE_SECONDS)
        assert [each.messages for each in other.endpoints("queue-0")] == [20]
        assert found_in(other, numbers.count) == list(range(numbers.count))


# Links that misbehave


class RawClient:
    """A link whose every byte the test controls."""

    def __init__(self, place: str) -> None:
        host, port = place.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = FrameSplitter()
        self._pieces: list[tuple[bool, bytes]] = []
        self._receiver = Receiver(10 * NS_PER_MS)
        version = ASSURED.version
        self.send(
            encode_frame(encode_session(Hello(ASSURED.name, version.major, version.minor, "raw", bytes(32), False)))
        )
        self.say(Login("raw"))
        self.say(OpenPublisher(1, 4_711))
        while not isinstance(answer := self.message(), PublisherOpened):
            pass
        self.handle = answer.handle
        self.number = 0

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def say(self, message: Message) -> None:
        self.send(encode_frame(ASSURED.encode(message, MESSAGE_SIZE_MAX)))

    def frame(self, payload: bytes = b"x") -> bytes:
        """The next message."""
        self.number += 1
        return encode_publish(self.handle, self.number, [Published(b"orders.raw", payload)])

    def outcome(self) -> dict[int, int]:
        """The outcomes in the next acknowledgement, by number."""
        is_data, piece = self._piece()
        assert is_data
        return {
            number: run.what
            for frame in decode_frames(piece)
            if isinstance(frame, Acknowledge)
            for run in frame.runs
            for number in range(run.first, run.last + 1)
        }

    def message(self) -> Message:
        while True:
            is_data, piece = self._piece()
            if not is_data:
                return ASSURED.decode(piece)

    def _piece(self) -> tuple[bool, bytes]:
        while not self._pieces:
            data = self._receiver.receive(self.socket.fileno(), timeout_ns=int(PATIENCE_SECONDS * NS_PER_SECOND))
            assert data, "the router has ended the link, or says nothing"
            self._pieces = self._splitter.feed(data)
        return self._pieces.pop(0)

    def until_committed_inline(self, router: RouterProcess) -> None:
        end = committed_inline(router) + INLINE_COUNT
        deadline = time.monotonic() + PATIENCE_SECONDS
        while committed_inline(router) < end:
            assert time.monotonic() < deadline, "the inline path is not taken"
            for _ in range(50):
                self.send(self.frame())
                assert self.outcome() == {self.number: OUTCOME_STORED}


@pytest.fixture
def raw(router: RouterProcess) -> Iterator[RawClient]:
    with closing(RawClient(router.place)) as client:
        client.until_committed_inline(router)
        yield client


def test_frames_in_pieces_or_together_are_taken_as_ever(router: RouterProcess, raw: RawClient) -> None:
    for cut in (1, 4, 5, 30):
        frame = raw.frame()
        raw.send(frame[:cut])
        before = committed_inline(router)  # the router has had time to see the incomplete frame
        raw.send(frame[cut:])
        assert raw.outcome() == {raw.number: OUTCOME_STORED}
        raw.send(raw.frame() + raw.frame())
        found: dict[int, int] = {}
        while raw.number not in found:
            found |= raw.outcome()
        assert found == dict.fromkeys((raw.number - 1, raw.number), OUTCOME_STORED)
        assert committed_inline(router) >= before
        raw.until_committed_inline(router)
    raw.send(raw.frame(bytes(100_000)))
    assert raw.outcome() == {raw.number: OUTCOME_STORED}
    raw.number -= 1
    raw.send(raw.frame())
    assert raw.outcome() == {raw.number: OUTCOME_KNOWN}
    raw.send(encode_credit(99, 5) + raw.frame())
    assert raw.outcome() == {raw.number: OUTCOME_STORED}


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_is_no_frame_ends_the_link_and_nothing_else(router: RouterProcess, raw: RawClient, is_whole: bool) -> None:
    frame = bytearray(raw.frame())
    if is_whole:
        frame[8] ^= 0xFF  # of a publisher that is not its own
    else:
        frame[0:4] = b"\xff\xff\xff\xff"
    raw.send(bytes(frame))
    assert isinstance(raw.message(), Refused)
    check_alive(router, raw.number - 1)


def test_a_link_that_ends_while_it_is_served_ends_nothing_else(router: RouterProcess, raw: RawClient) -> None:
    raw.send(raw.frame())
    raw.close()
    wait_until(lambda: router.status().clients == 0, "the end of the link at the router")
    check_alive(router, raw.number)


def check_alive(router: RouterProcess, count: int) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        assert publisher.publish("orders.new", b"", timeout=PATIENCE_SECONDS) == "stored"
        assert client.endpoints("orders")[0].messages == count + 1


# Failures


@pytest.mark.spec("REPL-1")
def test_after_kill_9_everything_acknowledged_is_there_once(router: RouterProcess) -> None:
    with client_of(router.place) as client, client.publisher() as publisher:
        numbers = Numbers(publisher)
        for _ in range(3):
            numbers.until_committed_inline(router)
            raised = publish_until_killed(router, numbers)
            assert not raised, "what was not acknowledged was sent again"
        assert client.endpoints("orders")[0].messages == numbers.count
        assert found_in(client, numbers.count) == list(range(numbers.count))


def publish_until_killed(router: RouterProcess, numbers: Numbers) -> list[BaseException]:
    """The router is killed while it serves a publisher, and started again."""
    is_over = threading.Event()
    raised: list[BaseException] = []

    def publish() -> None:
        try:
            while not is_over.is_set():
                numbers.publish()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=publish, daemon=True)
    before = committed_inline(router)
    thread.start()
    wait_until(lambda: committed_inline(router) > before + INLINE_COUNT, "messages to be committed inline")
    router.kill()
    router.start()
    is_over.set()
    thread.join(PATIENCE_SECONDS)
    return raised


@pytest.mark.spec("REPL-1")
def test_when_syncs_fail_on_the_short_way_nothing_more_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = failing_syncs(tmp_path, monkeypatch)
    with router_process(router_config(tmp_path / "state"), tmp_path) as router:
        with client_of(router.place) as client:
            publisher = client.publisher()
            numbers = Numbers(publisher)
            numbers.until_committed_inline(router)
            failing.touch()
            with pytest.raises((RefusedError, UnreachableError)):
                numbers.publish(timeout=1.0)
            wait_until(lambda: not router.status().is_storing, "the report of the failure")
            failing.unlink()
            with pytest.raises(RefusedError, match="disk accepts no data"):
                client.publisher().publish("orders.new", b"refused", timeout=PATIENCE_SECONDS)
        router.kill()
        router.start()
        with client_of(router.place) as client:
            messages = client.endpoints("orders")[0].messages
            assert messages in (numbers.count, numbers.count + 1), "the unacknowledged message may be stored"
            assert found_in(client, messages)[: numbers.count] == list(range(numbers.count))


@pytest.mark.spec("REPL-1")
@pytest.mark.parametrize("device", [FULL, UNSYNCED])
def test_a_disk_that_fails_for_a_while_on_the_short_way(tmp_path: Path, device: str) -> None:
    """A router in this process, so that a test can take its disk away."""
    config = router_config(tmp_path / "state", journal=JournalConfig(retry_ms=20), reserve_bytes=0)
    with router_here(config) as router, closing(RawClient(router.place)) as raw:
        served = served_of(router)
        while served() < INLINE_COUNT:
            raw.send(raw.frame())
            assert raw.outcome() == {raw.number: OUTCOME_STORED}
        disk = router.router._disk
        assert disk is not None
        before = served()
        with broken_disk(disk._writer, device):
            raw.send(raw.frame())
            if device == FULL:
                wait_until(lambda: not router.router.status().is_storing, "the report of the failure")
                assert disk._writer.durable_sequence < disk._writer.next_sequence - 1
            else:
                wait_until(lambda: disk._writer.durable_sequence == disk._writer.next_sequence - 1)
        assert raw.outcome() == {raw.number: OUTCOME_STORED}, "when it is on the disk, at its place or in a new segment"
        wait_until(lambda: router.router.status().is_storing, "the disk to accept data again")
        while served() < before + INLINE_COUNT:
            raw.send(raw.frame())
            assert raw.outcome() == {raw.number: OUTCOME_STORED}
    with router_here(config) as router, client_of(router.place) as client:
        assert client.endpoints("orders")[0].messages == raw.number


def served_of(router: RouterHere) -> Callable[[], int]:
    """Returns a function that counts the messages that the router has committed inline."""
    counters = router.router._links.counters
    return lambda: counters["messages_committed_inline"]
