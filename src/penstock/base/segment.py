"""A piece of shared memory as one process hands it to another: file descriptors, what is in them, and a lifeline.

penstock.shm makes segments and reads them; penstock.net.live.handover carries them between processes.
"""

import os
import warnings
from typing import Protocol

from penstock.base.errors import LocalProtocolError


class Lifeline(Protocol):
    """What tells a consumer that the producer is gone."""

    def peer_is_alive(self) -> bool: ...

    def close(self) -> None: ...


class Segment:
    """Owns its file descriptors, and the lifeline to the process it came from, until close().

    `kind` says what is in it ("ring", "region", "marks"), the rest is in the segment itself.
    """

    def __init__(self, kind: str, fds: tuple[int, ...], lifeline: Lifeline | None = None) -> None:
        self.kind = kind
        self.lifeline = lifeline
        self._fds = fds

    @property
    def fds(self) -> tuple[int, ...]:
        if not self._fds:
            raise LocalProtocolError(f"the {self.kind} segment is closed")
        return self._fds

    @property
    def is_closed(self) -> bool:
        return not self._fds

    def copy(self) -> "Segment":
        """The same memory with descriptors of its own, without the lifeline."""
        fds: list[int] = []
        try:
            fds.extend(os.dup(fd) for fd in self.fds)  # those before one that fails are in it
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return Segment(self.kind, tuple(fds))

    def close(self) -> None:
        """Give the descriptors and the lifeline back; what is mapped already stays mapped."""
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)
        if self.lifeline is not None:
            self.lifeline.close()

    def __enter__(self) -> "Segment":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._fds:
            warnings.warn(f"the {self.kind} segment was never closed", ResourceWarning, source=self, stacklevel=2)
            self.close()
