"""Handover of shared memory between processes: file descriptors over an authenticated Unix socket.

The producer offers segments by name, and the consumer requests one:

    with Handover("/run/user/1000/plant/handover") as handover:
        handover.offer("quotes", ring.segment)

    with receive_segment("/run/user/1000/plant/handover", "quotes") as segment: ...

The kernel identifies the peer's user; if a shared secret is configured, both sides prove it without sending it. The
connection stays open as a lifeline, which tells each process when the other one ends.

Paths are those of net.unix: a file, or @ and a name.
"""

import asyncio
import os
import selectors
import socket
import threading
import time
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND, random_bytes
from penstock.base.config import Config
from penstock.base.counters import Cause, Counters
from penstock.base.errors import HandoverError, LocalProtocolError
from penstock.base.log import logger
from penstock.base.segment import Segment
from penstock.net.core.handover_protocol import (
    FDS_MAX,
    HANDSHAKE_SIZE_MAX,
    NONCE_SIZE,
    Challenge,
    Gate,
    Grant,
    Refusal,
    Request,
    answer_challenge,
    check_grant,
    check_name,
    decode_answer,
)
from penstock.net.live.unix import Connection, accept, close_all, connect, is_abstract, listen
from penstock.net.secret import Secret

TIMEOUT_NS_DEFAULT = 5 * NS_PER_SECOND
ACCEPT_PAUSE_SECONDS = 0.1

log = logger("handover")

T = TypeVar("T", Challenge, Grant)


class HandoverConfig(Config, frozen=True):
    """Limits of the producer's side."""

    connections_max: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 64
    """Maximum number of consumers, including those in the handshake."""

    handshake_timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=60_000)] = 1_000
    """Time limit for a consumer to request its segment."""

    uids_allowed: tuple[int, ...] = ()
    """Users whose processes may connect, in addition to the producer's user."""


class Consumer(msgspec.Struct, frozen=True):
    """A process that was given a segment and is still connected."""

    segment_name: str
    pid: int
    uid: int


def receive_segment(
    path: str | Path,
    name: str,
    *,
    secret: Secret | None = None,
    timeout_ns: int = TIMEOUT_NS_DEFAULT,
    uids_allowed: tuple[int, ...] = (),
) -> Segment:
    """Request a segment from the producer at `path` by name; the caller closes the segment.

    Raises HandoverError if nothing listens there, if the producer belongs to another user (not in `uids_allowed`),
    refuses, or does not know the secret.
    """
    check_name(name)
    where, deadline_ns = str(path), time.monotonic_ns() + timeout_ns
    try:
        connection = connect(where, timeout_ns)
        try:
            uid = connection.credentials()[1]
            if uid not in (os.geteuid(), *uids_allowed):
                raise HandoverError(f"the producer runs as user {uid}", hint="add trusted users to uids_allowed")
            return _ask(connection, name, secret, deadline_ns)
        except BaseException:
            connection.close()
            raise
    except TimeoutError:
        raise HandoverError("no answer in time", where=where) from None
    except OSError as error:
        raise HandoverError(
            f"no answer: {error.strerror or error}", where=where, hint="check that the producer is running as your user"
        ) from None


async def await_segment(path: str, name: str, *, secret: Secret | None) -> Segment:
    """receive_segment() for a loop, in a thread. A segment that arrives after the task was cancelled is closed
    there."""
    received: list[Segment] = []
    guard, is_over = threading.Lock(), threading.Event()

    def receive() -> None:
        segment = receive_segment(path, name, secret=secret)
        with guard:
            if is_over.is_set():
                segment.close()
            else:
                received.append(segment)

    try:
        await asyncio.to_thread(receive)
    except BaseException:
        with guard:
            is_over.set()
            for segment in received:
                segment.close()
        raise
    return received[0]


def _ask(connection: Connection, name: str, secret: Secret | None, deadline_ns: int) -> Segment:
    challenge, fds = _answer(connection, Challenge, deadline_ns)
    close_all(fds)
    request = answer_challenge(challenge, name, secret, random_bytes(NONCE_SIZE))
    connection.send(msgspec.json.encode(request))
    grant, fds = _answer(connection, Grant, deadline_ns)
    try:
        check_grant(grant, request, challenge, secret)
        if len(fds) != grant.fd_count:
            raise HandoverError(f"received {len(fds)} file descriptors instead of {grant.fd_count}")
    except HandoverError:
        close_all(fds)
        raise
    return Segment(grant.kind, tuple(fds), connection)


def _answer(connection: Connection, kind: type[T], deadline_ns: int) -> tuple[T, list[int]]:
    """Return the producer's next message and its descriptors. Raise HandoverError for a refusal or an invalid
    message."""
    data, fds = connection.receive(HANDSHAKE_SIZE_MAX, FDS_MAX, max(1, deadline_ns - time.monotonic_ns()))
    try:
        message = decode_answer(data)
    except (ValueError, RecursionError) as error:
        close_all(fds)
        raise HandoverError(f"cannot decode the producer's answer: {error}") from None
    if isinstance(message, kind):
        return message, fds
    close_all(fds)
    if isinstance(message, Refusal):
        raise HandoverError(f"the producer refused: {message.cause}")
    raise HandoverError(f"the producer answered with a {type(message).__name__}")


class _Peer:
    """A consumer's connection on the producer's side."""

    def __init__(self, connection: Connection, deadline_ns: int) -> None:
        self.connection = connection
        self.pid, self.uid = connection.credentials()
        self.nonce = random_bytes(NONCE_SIZE)
        self.deadline_ns = deadline_ns
        self.segment_name: str | None = None


class Handover:
    """Serves segments from `start()` to `close()`, in a thread of its own.

    With `secret`, consumers need the same secret. `counters` has the numbers of grants and refusals.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        secret: Secret | None = None,
        config: HandoverConfig = HandoverConfig(),  # noqa: B008
    ) -> None:
        self.counters = Counters("handover")
        self._path = str(path)
        self._config = config
        self._gate = Gate(frozenset((os.geteuid(), *config.uids_allowed)), secret)
        self._offers: dict[str, Segment] = {}
        self._offers_lock = threading.Lock()
        self._peers: dict[int, _Peer] = {}
        self._listener = listen(self._path)
        self._inode = 0 if is_abstract(self._path) else os.stat(self._path).st_ino
        self._wake, self._wake_sender = socket.socketpair()
        self._is_stopping = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="penstock-handover", daemon=True)

    def start(self) -> None:
        self._thread.start()
        log.info("handover_started", path=self._path)

    def offer(self, name: str, segment: Segment) -> None:
        """Offer the segment under this name, in place of an earlier one."""
        check_name(name)
        kept = segment.copy()
        with self._offers_lock:
            before = self._offers.pop(name, None)
            self._offers[name] = kept
        if before:
            before.close()

    def withdraw(self, name: str) -> None:
        """Stop offering a segment; consumers that have it keep it."""
        with self._offers_lock:
            segment = self._offers.pop(name, None)
        if segment is None:
            raise LocalProtocolError(f"no segment has the name {name!r}")
        segment.close()

    def consumers(self) -> list[Consumer]:
        """The processes that have a segment and are still connected."""
        peers = list(self._peers.copy().values())
        return [Consumer(peer.segment_name, peer.pid, peer.uid) for peer in peers if peer.segment_name is not None]

    def close(self) -> None:
        """Stop, close every lifeline and remove the socket. A second call has no effect."""
        if self._listener.fileno() < 0:
            return
        self._is_stopping.set()
        self._wake_sender.send(b"\0")
        if self._thread.is_alive():
            self._thread.join()
        for peer in list(self._peers.values()):
            peer.connection.close()
        self._peers.clear()
        if self._inode and os.path.exists(self._path) and os.stat(self._path).st_ino == self._inode:
            os.unlink(self._path)
        for each in (self._listener, self._wake, self._wake_sender):
            each.close()
        for name in list(self._offers):
            self.withdraw(name)

    def __enter__(self) -> "Handover":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._wake, selectors.EVENT_READ)
            while not self._is_stopping.is_set():
                for key, _ in selector.select(self._patience_seconds()):
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif isinstance(key.data, _Peer):
                        self._hear(selector, key.data)
                now_ns = time.monotonic_ns()
                for peer in [each for each in self._peers.values() if each.segment_name is None]:
                    if peer.deadline_ns <= now_ns:
                        self._refuse(selector, peer, Refusal(Cause.SILENT))

    def _patience_seconds(self) -> float | None:
        """Seconds until the first handshake deadline."""
        deadlines = [peer.deadline_ns for peer in self._peers.values() if peer.segment_name is None]
        return max(0, min(deadlines) - time.monotonic_ns()) / NS_PER_SECOND if deadlines else None

    def _accept(self, selector: selectors.BaseSelector) -> None:
        deadline_ns = time.monotonic_ns() + self._config.handshake_timeout_ms * NS_PER_MS
        try:
            peer = _Peer(accept(self._listener), deadline_ns)
        except OSError as error:  # out of descriptors, or the peer has disconnected
            log.warning("accept_failed", error=error.strerror)
            self._is_stopping.wait(ACCEPT_PAUSE_SECONDS)
            return
        selector.register(peer.connection, selectors.EVENT_READ, peer)
        self._peers[peer.connection.fileno()] = peer
        if len(self._peers) > self._config.connections_max:
            self._refuse(selector, peer, Refusal(Cause.CONNECTION_LIMIT))
            return
        challenge = self._gate.challenge(peer.uid, peer.nonce)
        if isinstance(challenge, Refusal):
            self._refuse(selector, peer, challenge)
        else:
            self._send(selector, peer, challenge)

    def _hear(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        """Handle the peer's only request; any further message, or the end of the connection, closes it."""
        try:
            data, fds = peer.connection.receive(HANDSHAKE_SIZE_MAX, FDS_MAX)
        except (OSError, HandoverError):
            data, fds = b"", []
        close_all(fds)
        if not data:
            self._drop(selector, peer)
        elif peer.segment_name is not None or fds:
            self._refuse(selector, peer, Refusal(Cause.HANDSHAKE))
        else:
            answer = self._gate.admit(data, peer.nonce)
            if isinstance(answer, Refusal):
                self._refuse(selector, peer, answer)
            else:
                self._grant(selector, peer, answer)

    def _grant(self, selector: selectors.BaseSelector, peer: _Peer, request: Request) -> None:
        with self._offers_lock:  # segments that are withdrawn meanwhile keep their descriptors until these are sent
            segment = self._offers.get(request.name)
            if segment is not None:
                grant = self._gate.grant(request, peer.nonce, segment.kind, len(segment.fds))
                if self._send(selector, peer, grant, segment.fds):
                    peer.segment_name = request.name
                    self.counters.add("handovers_granted")
                    log.info("segment_granted", name=request.name, pid=peer.pid, uid=peer.uid)
                return
        self._refuse(selector, peer, Refusal(Cause.UNKNOWN_SEGMENT))

    def _refuse(self, selector: selectors.BaseSelector, peer: _Peer, refusal: Refusal) -> None:
        self.counters.add("handovers_refused", cause=refusal.cause)
        log.warning("handover_refused", cause=refusal.cause, pid=peer.pid, uid=peer.uid)
        if self._send(selector, peer, refusal):
            self._drop(selector, peer)

    def _send(
        self, selector: selectors.BaseSelector, peer: _Peer, message: msgspec.Struct, fds: tuple[int, ...] = ()
    ) -> bool:
        """Send a message. Return False, and drop the peer, if that fails."""
        try:
            peer.connection.send(msgspec.json.encode(message), fds)
        except OSError as error:
            log.debug("peer_lost", pid=peer.pid, error=error.strerror)
            self._drop(selector, peer)
            return False
        return True

    def _drop(self, selector: selectors.BaseSelector, peer: _Peer) -> None:
        del self._peers[peer.connection.fileno()]
        selector.unregister(peer.connection)
        peer.connection.close()
