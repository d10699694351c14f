"""Moves an agent's data between its sockets without Python."""

from typing_extensions import Buffer

from penstock.tree.core.kernel._fanout import Fanout

class Lane:
    """The sockets of one fan-out. One thread calls run(); any thread may call the other methods."""

    def __init__(self, fanout: Fanout) -> None: ...
    @property
    def fanout(self) -> Fanout: ...
    def open(self, link: int, fd: int, begun: Buffer | None = None) -> None:
        """The socket must not block; `begun` are bytes that were already read from it. From now on only the lane reads
        and writes it."""

    def close(self, link: int) -> None:
        """Stop reading from and writing to the link's socket. No effect if the lane does not have it."""

    def wake(self) -> None:
        """Make run() return."""

    def cork(self) -> None:
        """Do not wake run() for data queued from now on: the caller calls send() soon."""

    def send(self) -> None:
        """Send waiting data in the caller's thread, to a few links; run() sends to the others."""

    def run(self, timeout_ns: int) -> bool:
        """Move data until the time has passed, wake() was called, or there is news for Python: then the result is True,
        and fanout.notices() or fanout.ready() return the news. Data can be moved further before the news is handled."""
