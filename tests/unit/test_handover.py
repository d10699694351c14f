"""The handover of segments over real sockets: admission, refusals, and what either side learns."""

import asyncio
import errno
import gc
import json
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from descriptors import copies_of
from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError, HandoverError, LocalProtocolError, ProducerGoneError
from penstock.base.segment import Segment
from penstock.net.live.handover import Handover, HandoverConfig, await_segment, receive_segment
from penstock.net.secret import Secret
from penstock.shm import RegionReader, RegionWriter, RingReader, RingWriter
from waiting import wait_until

SECRET, OTHER_SECRET = Secret(b"0123456789abcdef"), Secret(b"fedcba9876543210")
NOBODY = 65_534


@pytest.fixture
def ring() -> Iterator[RingWriter]:
    with RingWriter.create(4_096, 64) as ring:
        yield ring


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "private" / "handover")


def refused(handover: Handover, cause: Cause) -> Callable[[], bool]:
    return lambda: handover.counters.by_cause("handovers_refused").get(cause, 0) == 1


@contextmanager
def stranger(path: str) -> Iterator[socket.socket]:
    """A client that speaks to the producer by hand; the challenge is the first message to receive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(60)
        sock.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        yield sock


def hear(sock: socket.socket) -> dict[str, object]:
    data, fds, _, _ = socket.recv_fds(sock, 4_096, 8)
    assert fds == []
    return json.loads(data) if data else {}


@pytest.mark.spec("OPS-2", "CRIT-1", "ADPT-1")
@pytest.mark.parametrize("secret", [None, SECRET])
@pytest.mark.parametrize("is_abstract", [False, True])
def test_segments_are_handed_over(ring: RingWriter, path: str, secret: Secret | None, is_abstract: bool) -> None:
    place = f"@penstock-test-{os.getpid()}" if is_abstract else path
    with Handover(place, secret=secret) as handover, RegionWriter.create(4, [64]) as region:
        handover.offer("events", ring.segment)
        handover.offer("records", region.segment)
        with receive_segment(place, "events", secret=secret) as segment, RingReader(segment) as reader:
            ring.write(b"event")
            assert reader.read() == b"event"
            with receive_segment(place, "records", secret=secret) as other, RegionReader(other) as records:
                region.write(2, b"r" * 64)
                record = records.read(2)
                assert record is not None
                assert record.payload == b"r" * 64
                wait_until(lambda: len(handover.consumers()) == 2)
                names = {each.segment_name for each in handover.consumers()}
                assert names == {"events", "records"}
                assert all((each.pid, each.uid) == (os.getpid(), os.geteuid()) for each in handover.consumers())
        wait_until(lambda: handover.consumers() == [])
        assert handover.counters["handovers_granted"] == 2
        assert handover.counters["handovers_refused"] == 0


@pytest.mark.spec("OPS-2")
def test_the_socket_is_private_and_removed_at_the_end(ring: RingWriter, path: str) -> None:
    with Handover(path):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        with pytest.raises(HandoverError, match="another process listens there"):
            Handover(path)
    assert os.listdir(os.path.dirname(path)) == []
    os.chmod(os.path.dirname(path), 0o750)
    with pytest.raises(HandoverError, match="other users can access"):
        Handover(path)


def test_a_socket_of_a_dead_process_is_replaced(ring: RingWriter, path: str) -> None:
    os.mkdir(os.path.dirname(path), 0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(path)
    with pytest.raises(HandoverError, match="Connection refused"):
        receive_segment(path, "events")
    with Handover(path) as handover:
        handover.offer("events", ring.segment)
        receive_segment(path, "events").close()
    Path(path).write_text("a file")
    with pytest.raises(HandoverError, match="is not a socket"):
        Handover(path)
    assert Path(path).read_text() == "a file"


def test_of_many_concurrent_starts_one_listens(path: str) -> None:
    """No process mistakes a socket that is being created for one of a dead process."""
    for _ in range(20):
        barrier = threading.Barrier(6)
        outcomes: list[Handover | HandoverError] = []

        def start(barrier: threading.Barrier = barrier, outcomes: list[Handover | HandoverError] = outcomes) -> None:
            barrier.wait()
            try:
                outcomes.append(Handover(path))
            except HandoverError as error:
                outcomes.append(error)

        threads = [threading.Thread(target=start) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        handovers = [each for each in outcomes if isinstance(each, Handover)]
        for handover in handovers:
            handover.close()
        assert len(handovers) == 1
        errors = [each.what for each in outcomes if isinstance(each, HandoverError)]
        assert errors == ["another process listens there"] * 5


def test_a_listener_with_a_full_backlog_is_not_stale(path: str) -> None:
    Path(path).parent.mkdir(mode=0o700)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        listener.bind(path)
        listener.listen(0)
        while True:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            waiting.setblocking(False)
            if waiting.connect_ex(path) == errno.EAGAIN:
                break
        with pytest.raises(HandoverError, match="another process listens there"):
            Handover(path)


def test_a_forked_child_keeps_no_lifeline(ring: RingWriter, path: str) -> None:
    """The child lives on, and neither the child nor its exit affects the sockets of its parent."""
    with Handover(path) as handover:
        handover.offer("ring", ring.segment)
        with receive_segment(path, "ring") as segment:
            wait_until(lambda: len(handover.consumers()) == 1)
            with child_that_waits(handover) as answer:
                assert answer == b"closed"
                assert segment.lifeline is not None
                assert segment.lifeline.peer_is_alive()
                handover.close()
                wait_until(lambda: segment.lifeline is not None and not segment.lifeline.peer_is_alive())
                with pytest.raises(HandoverError, match="No such file"):
                    receive_segment(path, "ring")


@contextmanager
def child_that_waits(handover: Handover) -> Iterator[bytes]:
    """A fork of this process that reports whether it has the listener and lives until the end."""
    ours, its = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        its.send(b"closed" if handover._listener.fileno() < 0 else b"open")
        its.recv(1)
        os._exit(0)
    its.close()
    try:
        yield ours.recv(10)
    finally:
        ours.close()
        os.waitpid(pid, 0)


def test_impossible_paths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoverError, match="path too long"):
        Handover(tmp_path / ("x" * 200))
    with pytest.raises(HandoverError, match="No such file"):
        Handover(tmp_path / "a" / "b" / "c")
    with pytest.raises(HandoverError, match="No such file"):
        receive_segment(tmp_path / "nobody", "events")


@pytest.mark.spec("OPS-2")
def test_a_wrong_secret_is_refused_on_both_sides(ring: RingWriter, path: str) -> None:
    with Handover(path, secret=SECRET) as handover:
        handover.offer("events", ring.segment)
        with pytest.raises(HandoverError, match="refused: authentication"):
            receive_segment(path, "events", secret=OTHER_SECRET)
        with pytest.raises(HandoverError, match="expects a secret"):
            receive_segment(path, "events")
        with stranger(path) as sock:
            nonce = hear(sock)["nonce"]
            sock.send(json.dumps({"type": "request", "name": "events", "nonce": nonce, "proof": ""}).encode())
            assert hear(sock) == {"type": "refusal", "cause": "authentication"}
            assert hear(sock) == {}
        assert handover.counters.by_cause("handovers_refused") == {Cause.AUTHENTICATION: 2}
        assert handover.counters["handovers_granted"] == 0
    with Handover(path) as handover, pytest.raises(HandoverError, match="expects no secret"):
        receive_segment(path, "events", secret=SECRET)


@pytest.mark.spec("OPS-2")
def test_a_producer_that_does_not_know_the_secret_is_refused(tmp_path: Path) -> None:
    """Any process can take a name in the abstract namespace first; a consumer with a secret detects it."""
    place = f"@penstock-test-impostor-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(f"\0{place[1:]}")
        listener.listen()

        def impostor() -> None:
            sock, _ = listener.accept()
            with sock, open(tmp_path / "f", "wb+") as file:
                nonce = "A" * 43 + "="
                sock.send(
                    json.dumps({"type": "challenge", "version": 1, "nonce": nonce, "needs_secret": True}).encode()
                )
                sock.recv(4_096)
                grant = {"type": "grant", "kind": "ring", "fd_count": 1, "proof": nonce}
                socket.send_fds(sock, [json.dumps(grant).encode()], [file.fileno()])

        thread = threading.Thread(target=impostor)
        thread.start()
        with pytest.raises(HandoverError, match="does not know the secret"):
            receive_segment(place, "events", secret=SECRET)
        thread.join()
        assert copies_of(os.stat(tmp_path / "f")) == 0


@pytest.mark.spec("OPS-2")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_refused(ring: RingWriter) -> None:
    place = f"@penstock-test-user-{os.getpid()}"
    with Handover(place) as handover:
        handover.offer("events", ring.segment)
        os.seteuid(NOBODY)
        try:
            with stranger(place) as sock:
                assert hear(sock) == {"type": "refusal", "cause": "foreign_user"}
                assert hear(sock) == {}
            with pytest.raises(HandoverError, match="the producer runs as user 0"):
                receive_segment(place, "events")
            with pytest.raises(HandoverError, match="refused: foreign_user"):
                receive_segment(place, "events", uids_allowed=(0,))
        finally:
            os.seteuid(0)
        wait_until(lambda: handover.counters.by_cause("handovers_refused") == {Cause.FOREIGN_USER: 3})
    with Handover(place, config=HandoverConfig(uids_allowed=(NOBODY,))) as handover:
        handover.offer("events", ring.segment)
        os.seteuid(NOBODY)
        try:
            receive_segment(place, "events", uids_allowed=(0,)).close()
        finally:
            os.seteuid(0)


@pytest.mark.spec("OPS-2")
@pytest.mark.parametrize(
    "data",
    [
        b"\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"{}",
        b'{"type":"request"}',
        b'{"type":"request","name":"","nonce":"","proof":""}',
        b'{"type":"request","name":"events","nonce":"AAAA","proof":""}',
        b"[" * 1_000,
        b'{"type":"request","x":' + b"[" * 990,
        b"\xff" * 1_025,
        b"x" * 100_000,
    ],
)
def test_invalid_bytes_are_refused(ring: RingWriter, path: str, data: bytes) -> None:
    with Handover(path) as handover:
        handover.offer("events", ring.segment)
        with stranger(path) as sock:
            assert hear(sock)["type"] == "challenge"
            sock.send(data)
            assert hear(sock) == {"type": "refusal", "cause": "handshake"}
            assert hear(sock) == {}
        wait_until(refused(handover, Cause.HANDSHAKE))
        receive_segment(path, "events").close()


@pytest.mark.spec("OPS-2")
def test_descriptors_sent_to_the_producer_are_closed(path: str) -> None:
    with Handover(path) as handover:
        with stranger(path) as sock, tempfile.TemporaryFile() as file:
            hear(sock)
            socket.send_fds(sock, [b"{}"], [file.fileno()] * 8)
            wait_until(lambda: hear(sock) == {})
            assert copies_of(os.fstat(file.fileno())) == 1
        assert handover.consumers() == []


def test_any_data_after_the_grant_ends_the_connection(ring: RingWriter, path: str) -> None:
    with Handover(path) as handover:
        handover.offer("events", ring.segment)
        with receive_segment(path, "events") as segment:
            lifeline = segment.lifeline
            assert lifeline is not None
            assert lifeline.peer_is_alive()
            with socket.socket(fileno=os.dup(lifeline.fileno())) as sock:  # type: ignore[attr-defined]
                sock.send(b"more")
            wait_until(refused(handover, Cause.HANDSHAKE))
            wait_until(lambda: not lifeline.peer_is_alive())


@pytest.mark.spec("OPS-2")
def test_a_silent_consumer_is_disconnected_in_time(ring: RingWriter, path: str) -> None:
    with Handover(path, config=HandoverConfig(handshake_timeout_ms=20)) as handover:
        with stranger(path) as sock:
            assert hear(sock)["type"] == "challenge"
            assert hear(sock) == {"type": "refusal", "cause": "silent"}
            assert hear(sock) == {}
        wait_until(refused(handover, Cause.SILENT))


def test_a_silent_producer_is_left_in_time(path: str) -> None:
    os.mkdir(os.path.dirname(path), 0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(path)
        silent.listen()
        with pytest.raises(HandoverError, match="no answer in time"):
            receive_segment(path, "events", timeout_ns=20_000_000)


@pytest.mark.parametrize(
    "answer", [b"\0", b"{}", b'{"type":"grant","kind":"ring","fd_count":1,"proof":""}', b"x" * 2_000]
)
def test_a_producer_that_breaks_the_protocol_is_refused(path: str, answer: bytes) -> None:
    os.mkdir(os.path.dirname(path), 0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()

        def answer_once() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.send(answer)

        thread = threading.Thread(target=answer_once)
        thread.start()
        with pytest.raises(HandoverError, match="answer"):
            receive_segment(path, "events")
        thread.join()


def test_connections_are_bounded(ring: RingWriter, path: str) -> None:
    with Handover(path, config=HandoverConfig(connections_max=2)) as handover:
        handover.offer("events", ring.segment)
        with (
            receive_segment(path, "events"),
            receive_segment(path, "events"),
            pytest.raises(HandoverError, match="refused: connection_limit"),
        ):
            receive_segment(path, "events")
        wait_until(lambda: handover.consumers() == [])
        receive_segment(path, "events").close()


def test_only_offered_segments_are_granted(ring: RingWriter, path: str) -> None:
    with Handover(path) as handover:
        handover.offer("events", ring.segment)
        with pytest.raises(HandoverError, match="refused: unknown_segment"):
            receive_segment(path, "event")
        handover.withdraw("events")
        with pytest.raises(HandoverError, match="refused: unknown_segment"):
            receive_segment(path, "events")
        with pytest.raises(LocalProtocolError, match="no segment has the name"):
            handover.withdraw("events")
        for name in ("", "x" * 256, "\ud800"):
            with pytest.raises(LocalProtocolError, match="is not a valid segment name"):
                handover.offer(name, ring.segment)
            with pytest.raises(LocalProtocolError, match="is not a valid segment name"):
                receive_segment(path, name)
    with pytest.raises(ConfigurationError):
        HandoverConfig(connections_max=0)


def test_an_offer_can_be_replaced_and_outlives_its_segment(path: str) -> None:
    with Handover(path) as handover:
        for number in range(2):
            with RingWriter.create(4_096, 64) as ring:
                handover.offer("events", ring.segment)
                ring.write(b"%d" % number)
            with receive_segment(path, "events") as segment, RingReader(segment) as reader:
                assert list(reader) == [b"%d" % number]


@pytest.mark.spec("CRIT-1")
def test_a_consumer_learns_that_the_producer_is_gone(ring: RingWriter, path: str) -> None:
    with Handover(path) as handover:
        handover.offer("events", ring.segment)
        with receive_segment(path, "events") as segment, RingReader(segment, wait="block") as reader:
            ring.write(b"last")
            handover.close()
            handover.close()
            assert reader.read() == b"last"
            with pytest.raises(ProducerGoneError):
                reader.read()
            assert segment.lifeline is not None
            segment.lifeline.close()
            assert not segment.lifeline.peer_is_alive()


def test_a_handover_that_never_started_can_be_closed(path: str) -> None:
    Handover(path).close()
    assert os.listdir(os.path.dirname(path)) == []


def test_a_segment_that_cannot_be_duplicated_leaves_no_descriptors_behind(path: str, ring: RingWriter) -> None:
    with Handover(path) as handover:
        broken = Segment("ring", (ring.segment.fds[0], 2**20))
        file = os.fstat(ring.segment.fds[0])
        before = copies_of(file)
        with pytest.raises(OSError, match="Bad file descriptor"):
            handover.offer("ring", broken)
        assert copies_of(file) == before
        broken._fds = ()


def test_a_segment_without_a_waiting_consumer_is_closed(ring: RingWriter, path: str) -> None:
    async def leave(yields: int) -> None:
        task = asyncio.ensure_future(await_segment(path, "quotes", secret=None))
        for _ in range(yields):
            await asyncio.sleep(0)
        task.cancel()
        for segment in await asyncio.gather(task, return_exceptions=True):
            if isinstance(segment, Segment):  # the handover was quicker
                segment.close()

    with Handover(path) as handover:
        handover.offer("quotes", ring.segment)
        for yields in range(1, 30):
            asyncio.run(leave(yields))
        wait_until(lambda: not handover.consumers())
    gc.collect()  # a forgotten segment warns now, and fails this test
