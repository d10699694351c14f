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
        """Nothing more is read from its socket or sent. Nothing happens if the lane does not have it."""

    def wake(self) -> None:
        """Have run() return."""

    def cork(self) -> None:
        """What comes to wait from now on need not wake run(): the caller sends it soon."""

    def send(self) -> None:
        """Send what waits, in the caller's thread: to some. If it is for more, that is for run()."""

    def run(self, timeout_ns: int) -> bool:
        """Move data until the time is over, or wake() was called, or there is something new for Python: then it is true
        and fanout.notices() or fanout.ready() have it. While that waits to be seen to, data can be moved on."""
