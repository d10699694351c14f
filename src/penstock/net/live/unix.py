"""Unix sockets for control: their paths, the identity of the peer, messages with file descriptors.

A path is a socket with mode 0600 in a directory that only its owner can access. A path that begins with @ is a name in
the abstract namespace, which leaves no file behind. Messages keep their boundaries (SOCK_SEQPACKET).
"""

import contextlib
import errno
import fcntl
import os
import select
import socket
import stat
import struct
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import HandoverError

BACKLOG = 16

# A listener's sockets must end with its process: a forked child would keep them open, and be mistaken for its parent.
_unshared: weakref.WeakSet[socket.socket] = weakref.WeakSet()
_unshared_lock = threading.Lock()


def _close_in_child() -> None:
    for sock in list(_unshared):
        sock.close()
    _unshared_lock.release()


os.register_at_fork(
    before=_unshared_lock.acquire, after_in_parent=_unshared_lock.release, after_in_child=_close_in_child
)


class Connection:
    """One end of a connection. It serves as a lifeline while it is open."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def fileno(self) -> int:
        """For select() and similar calls: readable when the peer has ended."""
        return self._socket.fileno()

    def peer_is_alive(self) -> bool:
        if self._socket.fileno() < 0:
            return False
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return not poll.poll(0)

    def credentials(self) -> tuple[int, int]:
        """The peer's process and user, as the kernel reports them."""
        pid, uid, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> None:
        """Send one message with these descriptors, or raise OSError. Never waits for the peer."""
        if fds:
            socket.send_fds(self._socket, [data], list(fds), socket.MSG_DONTWAIT)
        else:
            self._socket.send(data, socket.MSG_DONTWAIT)

    def receive(self, size_max: int, fds_max: int, timeout_ns: int = 0) -> tuple[bytes, list[int]]:
        """Receive one message, which is empty at the end, and its descriptors.

        A message that is too long is returned as `size_max` + 1 bytes. The caller closes the descriptors.
        """
        self._socket.settimeout(timeout_ns / NS_PER_SECOND)
        data, fds, flags, _ = socket.recv_fds(self._socket, size_max + 1, fds_max, socket.MSG_CMSG_CLOEXEC)
        if flags & socket.MSG_CTRUNC:
            close_all(fds)
            raise HandoverError("received more file descriptors than announced")
        return data, fds

    def close(self) -> None:
        self._socket.close()


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def connect(path: str, timeout_ns: int) -> Connection:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(timeout_ns / NS_PER_SECOND)
        sock.connect(address(path))
    except OSError:
        sock.close()
        raise
    return Connection(sock)


def is_abstract(path: str) -> bool:
    return path.startswith("@")


def address(path: str) -> str:
    return f"\0{path[1:]}" if is_abstract(path) else path


def listen(path: str) -> socket.socket:
    """Return a listening socket. A socket left behind by a process that died is replaced.

    The socket and its accepted connections are closed in forked children.
    """
    with _unshared_lock:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _unshared.add(listener)
    try:
        if is_abstract(path):
            listener.bind(address(path))
            listener.listen(BACKLOG)
        else:
            _check_directory(Path(path).parent)
            with _locked(Path(path).parent):  # a bound socket that does not listen yet looks stale
                _remove_stale(path)
                listener.bind(path)
                os.chmod(path, stat.S_IRUSR | stat.S_IWUSR)
                listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise HandoverError(f"cannot listen: {error.strerror or error}", where=path) from None
    except HandoverError:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> Connection:
    """Return the next connection of a listener, or raise OSError. Does not wait."""
    with _unshared_lock:
        sock, _ = listener.accept()
        _unshared.add(sock)
    return Connection(sock)


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Let only one process at a time look for stale sockets."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _check_directory(directory: Path) -> None:
    directory.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    found = directory.stat()
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise HandoverError(
            "other users can access the directory of the socket",
            where=str(directory),
            hint="run chmod 700 as its owner",
        )


def _remove_stale(path: str) -> None:
    """Remove a socket on which no process listens any more."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise HandoverError("exists and is not a socket", where=path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.setblocking(False)
        error = probe.connect_ex(path)
    if error in (0, errno.EAGAIN):  # EAGAIN: other clients wait for it
        raise HandoverError("another process listens there", where=path)
    if error != errno.ECONNREFUSED:
        raise OSError(error, os.strerror(error))
    os.unlink(path)
