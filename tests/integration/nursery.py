"""Commands as forks of one process that has imported all of them, because most commands spend more time on imports than
on the tested work.

A fork is a complete process, with its own descriptors, directory, environment and exit status. A fork does not test
that the command imports everything it needs; commands that are executed do (command_kit.COMMAND).

Run as a script, this module is the forked process. The process ends when the socket for its requests is closed.
"""

import atexit
import functools
import gc
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO

PATIENCE_SECONDS = 180.0
REQUEST_SIZE_MAX = 1 << 20
STATUS = struct.Struct("<i")


class Forked:
    """A command that runs; the part of subprocess.Popen that tests use."""

    def __init__(self, pid: int, status: int, stdin: BinaryIO) -> None:
        self.pid = pid
        self.stdin = stdin
        self.returncode: int | None = None
        self._status = status

    def poll(self) -> int | None:
        return self._ended_within(0)

    def wait(self, timeout: float = PATIENCE_SECONDS) -> int:
        status = self._ended_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, seconds: float) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            (self.returncode,) = STATUS.unpack(os.read(self._status, STATUS.size))
            os.close(self._status)
        return self.returncode


class Nursery:
    """The process that is forked; it runs as long as this one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process with threads must not be forked
            )

    def start(self, arguments: Sequence[str], out: BinaryIO, err: BinaryIO) -> Forked:
        """Run `penstock ARGUMENTS` in the current environment of this process."""
        stdin, to_stdin = os.pipe()
        status, tell_status = os.pipe()
        request = json.dumps([list(arguments), os.getcwd(), dict(os.environ)]).encode()
        try:
            with self._lock:
                socket.send_fds(self._requests, [request], [stdin, out.fileno(), err.fileno(), tell_status])
                pid = int(self._requests.recv(REQUEST_SIZE_MAX))
        finally:
            os.close(stdin)
            os.close(tell_status)
        return Forked(pid, status, os.fdopen(to_stdin, "wb"))

    def close(self) -> None:
        self._requests.close()
        self._process.wait()


@functools.cache
def nursery() -> Nursery:
    made = Nursery()
    atexit.register(made.close)
    return made


def surroundings() -> tuple[str, str | None]:
    """The properties that a process gets at its start, and a fork of another process does not: a network namespace and
    preloaded libraries."""
    return os.readlink("/proc/thread-self/ns/net"), os.environ.get("LD_PRELOAD")


ORDINARY = surroundings()
"""The properties of the process that is forked."""


def serve(requests: socket.socket) -> list[str]:
    """Serve requests; returns only in the forks, with the arguments of each."""
    waiting = selectors.DefaultSelector()
    waiting.register(requests, selectors.EVENT_READ)
    own = {int(name) for name in os.listdir("/proc/self/fd")} - {requests.fileno(), waiting.fileno()}
    while True:
        for key, _ in waiting.select():
            if key.fileobj is not requests:
                pid, tell_status = key.data
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                waiting.unregister(key.fileobj)
                os.close(key.fd)
                os.write(tell_status, STATUS.pack(status))
                os.close(tell_status)
                continue
            request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_SIZE_MAX, 4)
            if not request:
                sys.exit()
            *standard, tell_status = descriptors
            pid = os.fork()
            if pid == 0:
                return be_started(json.loads(request), standard, own)
            for each in standard:
                os.close(each)
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, tell_status))
            requests.send(str(pid).encode())


def be_started(request: tuple[list[str], str, dict[str, str]], standard: list[int], own: set[int]) -> list[str]:
    arguments, directory, environment = request
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in own:
            close_if_open(int(name))
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    return arguments


def close_if_open(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return  # the descriptor of the listing itself


if __name__ == "__main__":
    from penstock.cli.main import COMMANDS, load_command, main

    for command in COMMANDS:
        load_command(command)
    gc.collect()
    gc.freeze()
    sys.argv = ["penstock", *serve(socket.socket(fileno=int(sys.argv[1])))]
    main()
