"""Sessions that are open in a forked child process, or at the end of the program."""

import atexit
import os
import warnings
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.assured.client.connection import Assured

_open: "weakref.WeakSet[Assured]" = weakref.WeakSet()


def opened(session: "Assured") -> None:
    _open.add(session)


def closed(session: "Assured") -> None:
    _open.discard(session)


def _forked() -> None:
    """The threads and connections of the sessions belong to the parent process."""
    for session in list(_open):
        session.disown()
    _open.clear()


def _ended() -> None:
    for session in list(_open):
        if count := session.unacknowledged:
            text = f"{count} assured messages were not acknowledged when the program ended: flush() before, or close()"
            warnings.warn(text, RuntimeWarning, stacklevel=1)


os.register_at_fork(after_in_child=_forked)
atexit.register(_ended)
