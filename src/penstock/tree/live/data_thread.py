"""The thread that moves an agent's data between plain sockets (the lane), beside the loop in which its core runs.

    data_thread = DataThread(fanout, noticed)  # noticed(): in the loop, when there are notices or something to take
    data_thread.start()
    data_thread.take_over(link, fd, begun)     # of a connection whose own reader has been paused
    data_thread.give_back(link)

A connection that is protected by TLS is not for it: its bytes pass through Python.
"""

import asyncio
import os
import socket
import threading
from collections.abc import Callable

from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.live._lane import Lane

TURN_NS = 1_000_000_000
"""Maximum time of one call of compiled code, if there is nothing for Python."""


class DataThread:
    """From start() to stop(), in a loop's thread."""

    def __init__(self, fanout: Fanout, noticed: Callable[[], None], *, cpu: int = -1) -> None:
        self._lane = Lane(fanout)
        self._noticed = noticed
        self._cpu = cpu
        self._sockets: dict[int, socket.socket] = {}
        self._is_told = self._is_over = False
        self._thread = threading.Thread(target=self._run, name="penstock-lane", daemon=True)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def take_over(self, link: int, fd: int, begun: bytes = b"") -> None:
        """Carry what is on this link from now on; `begun` was read already. The descriptor stays its owner's."""
        self._sockets[link] = sock = socket.socket(fileno=os.dup(fd))
        sock.setblocking(False)
        try:
            self._lane.open(link, sock.fileno(), begun)
        except BaseException:
            self._sockets.pop(link).close()
            raise

    def has(self, link: int) -> bool:
        return link in self._sockets

    def give_back(self, link: int) -> None:
        """Stop reading from and writing to the link. No effect if it was not taken over."""
        if (sock := self._sockets.pop(link, None)) is not None:
            self._lane.close(link)
            sock.close()

    def cork(self) -> None:
        """Leave newly queued data for the next send() call, because waking the data thread takes longer."""
        self._lane.cork()

    def send(self) -> None:
        self._lane.send()

    def stop(self) -> None:
        self._is_over = True
        self._lane.wake()
        if self._thread.is_alive():
            self._thread.join()
        for link in list(self._sockets):
            self.give_back(link)

    def _run(self) -> None:
        if self._cpu >= 0:
            os.sched_setaffinity(0, {self._cpu})
        while not self._is_over:
            if self._lane.run(TURN_NS) and not self._is_told:
                self._is_told = True
                self._loop.call_soon_threadsafe(self._handle_notices)

    def _handle_notices(self) -> None:
        self._is_told = False
        if not self._is_over:
            self._noticed()
