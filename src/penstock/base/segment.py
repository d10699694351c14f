"""A shared memory segment on its way between processes: file descriptors, the kind of content, and a lifeline.

penstock.shm creates and reads segments; penstock.net.live.handover transfers them between processes.
"""

import os
import warnings
from typing import Protocol

from penstock.base.errors import LocalProtocolError


class Lifeline(Protocol):
    """Tells a consumer when the producer has ended."""

    def peer_is_alive(self) -> bool: ...

    def close(self) -> None: ...


class Segment:
    """Owns its file descriptors and the lifeline to the producing process until close().

    `kind` is the content ("ring", "region", "marks"); the segment itself describes the rest.
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
        """Return the same memory with its own descriptors, without the lifeline."""
        fds: list[int] = []
        try:
            fds.extend(os.dup(fd) for fd in self.fds)  # on failure, `fds` has those already duplicated
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        return Segment(self.kind, tuple(fds))

    def close(self) -> None:
        """Close the descriptors and the lifeline; existing mappings stay valid."""
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
