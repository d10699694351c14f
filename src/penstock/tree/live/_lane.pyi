"""Moves an agent's data between its sockets without Python."""

from typing_extensions import Buffer

from penstock.tree.core.kernel._fanout import Fanout

class Lane:
    """The sockets of one fan-out. All is for any thread but run(), which is for one."""

    def __init__(self, fanout: Fanout) -> None: ...
    @property
    def fanout(self) -> Fanout: ...
    def open(self, link: int, fd: int, begun: Buffer | None = None) -> None:
        """The socket does not block; `begun` are bytes that were read from it already. From now on nobody else reads or
        writes it."""

    def close(self, link: int) -> None:
        """Stop reading from and writing to the link's socket. No effect if the lane does not have it."""

    def wake(self) -> None:
        """Make run() return."""

    def cork(self) -> None:
        """Do not wake run() for data queued from now on: the caller calls send() soon."""

    def send(self) -> None:
        """Send waiting data in the caller's thread, to a few links; run() sends to the others."""

    def run(self, timeout_ns: int) -> bool:
        """Move data until the time is over, or wake() was called, or there is something new for Python: then it is true
        and fanout.notices() or fanout.ready() have it. While that waits to be seen to, data can be moved on."""
