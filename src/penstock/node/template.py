"""A process that has imported what nodes need, and is copied for each node of a plant.

    supervisor ── Fork, pipes ──► template ── fork ──► node
               ◄── Forked, pidfd ──
               ◄── wait status, by the pipe of the node ──

Copies share the memory of modules until they write to it, and start without importing. The template has one thread and
runs nothing; it ends with its supervisor.
"""

import contextlib
import ctypes
import gc
import importlib
import io
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from penstock.base.errors import ProcessError
from penstock.base.memory import limit_allocator

REQUEST_SIZE_MAX = 65_536
STATUS_SIZE = 4
START_SECONDS = 180.0

PR_SET_NAME = 15
NAME_SIZE_MAX = 15

STDIN, STDOUT, STDERR = 0, 1, 2


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """Copy the template. With it come the node's standard input and output, the pipe for its wait status, and its
    standard error unless it is that of the template."""

    name: str
    """Shown by ps and top in place of the template's."""

    main: str
    """The entry point, as MODULE:FUNCTION."""

    arguments: list[str]


class Forked(msgspec.Struct, frozen=True, array_like=True):
    """With it comes the process's pidfd."""

    pid: int


_requests, _answers = msgspec.msgpack.Decoder(Fork), msgspec.msgpack.Decoder(Forked)


class ForkedProcess:
    """A node's process, with the part of subprocess.Popen that its supervisor uses."""

    def __init__(self, pid: int, pidfd: int, stdin: int, stdout: int, status: int) -> None:
        self.pid = pid
        self.stdin = io.FileIO(stdin, "w")
        self.stdout = io.FileIO(stdout)
        self.returncode: int | None = None
        self._pidfd = pidfd
        self._status = status

    def poll(self) -> int | None:
        return self._take_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        if (returncode := self._take_status(timeout)) is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return returncode

    def kill(self) -> None:
        if self.returncode is None:
            try:
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            except ProcessLookupError:
                self.poll()  # it has ended already

    def _take_status(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            data = os.read(self._status, STATUS_SIZE)  # nothing: the template was killed, and nobody knows the status
            known = len(data) == STATUS_SIZE
            self.returncode = os.waitstatus_to_exitcode(int.from_bytes(data, "little")) if known else 1
            os.close(self._status)
            os.close(self._pidfd)
        return self.returncode


class Template:
    """The supervisor's side. The process starts with the first fork()."""

    def __init__(self, modules: Sequence[str]) -> None:
        """`modules` are imported once; nodes that need others import those themselves."""
        self._modules = tuple(modules)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def fork(self, name: str, main: str, arguments: Sequence[str], errors: int | None = None) -> ForkedProcess:
        """Start a process that calls `main`. Its standard error is the descriptor `errors`, or that of the template."""
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._start()
        assert self._socket is not None
        stdin, stdout, status = os.pipe(), os.pipe(), os.pipe()
        theirs = [stdin[0], stdout[1], status[1]]
        ours = [stdin[1], stdout[0], status[0]]
        try:
            sent = theirs if errors is None else [*theirs, errors]
            socket.send_fds(self._socket, [msgspec.msgpack.encode(Fork(name, main, list(arguments)))], sent)
            data, fds, _, _ = socket.recv_fds(self._socket, REQUEST_SIZE_MAX, 1)
            if not data or len(fds) != 1:
                raise ProcessError("the template process of the plant's nodes has ended", hint="see its messages")
            return ForkedProcess(_answers.decode(data).pid, fds[0], *ours)
        except BaseException:
            for each in ours:
                os.close(each)
            raise
        finally:
            for each in theirs:
                os.close(each)

    @property
    def pid(self) -> int:
        """0: it has not started."""
        return 0 if self._process is None else self._process.pid

    def close(self) -> None:
        """Processes that were forked go on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(START_SECONDS)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import main; main()", str(theirs.fileno()), *self._modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no thread in the template, and none idle in nodes
            )


# The template's side


def main() -> None:
    """Entry point of the template, and of its copies. The arguments are the descriptor of the supervisor's socket and
    modules."""
    limit_allocator()
    requests = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collector does not write to objects that copies share
    if (fork := _Copying(requests).serve()) is not None:
        ctypes.CDLL(None).prctl(PR_SET_NAME, fork.name.encode()[:NAME_SIZE_MAX])
        module, function = fork.main.split(":")
        sys.argv[1:] = fork.arguments
        getattr(importlib.import_module(module), function)()


class _Copying:
    """Serves the supervisor."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._statuses: dict[int, int] = {}  # pipes, by pid
        self._ended, self._rings = os.pipe()
        for each in (self._ended, self._rings):
            os.set_blocking(each, False)
        signal.set_wakeup_fd(self._rings, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> Fork | None:
        """Return in a copy with what it is to do, and in the template with None when the supervisor has ended."""
        while True:
            ready, _, _ = select.select([self._requests.fileno(), self._ended], [], [])
            if self._ended in ready:
                os.read(self._ended, REQUEST_SIZE_MAX)
                self._reap()
            if self._requests.fileno() not in ready:
                continue
            data, fds, _, _ = socket.recv_fds(self._requests, REQUEST_SIZE_MAX, 4)
            if not data:
                return None
            if (fork := self._fork(data, *fds)) is not None:
                return fork

    def _fork(self, data: bytes, stdin: int, stdout: int, status: int, *errors: int) -> Fork | None:
        """Return in the copy with what it is to do, and in the template with None."""
        pid = os.fork()
        if pid == 0:
            self._leave(stdin, stdout, status, *errors)
            return _requests.decode(data)
        self._statuses[pid] = status
        pidfd = os.pidfd_open(pid)
        with contextlib.suppress(OSError):  # the supervisor has ended, and the copy is about to
            socket.send_fds(self._requests, [msgspec.msgpack.encode(Forked(pid))], [pidfd])
        for each in (pidfd, stdin, stdout, *errors):
            os.close(each)
        return None

    def _reap(self) -> None:
        while self._statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = self._statuses.pop(pid)
            with contextlib.suppress(BrokenPipeError):  # the supervisor no longer wants to know
                os.write(pipe, status.to_bytes(STATUS_SIZE, "little"))
            os.close(pipe)

    def _leave(self, stdin: int, stdout: int, status: int, *errors: int) -> None:
        """In a copy: be a process that was started with these descriptors."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)  # Ctrl-C in the terminal only reaches the supervisor
        os.dup2(stdin, STDIN)
        os.dup2(stdout, STDOUT)
        for each in errors:
            os.dup2(each, STDERR)
        self._requests.close()
        for each in (stdin, stdout, status, *errors, self._ended, self._rings, *self._statuses.values()):
            os.close(each)
