"""Sleep until the next of equal intervals."""

import ctypes
import os
import time
from types import TracebackType

from penstock.base.clock import NS_PER_SECOND
from penstock.bench.transports import check


class Ticker:
    """A periodic timer: sleeping needs no timer call, which would take microseconds on a virtual machine."""

    def __init__(self, interval_ns: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_CLOEXEC)
        check(self._fd >= 0, f"no timer: {os.strerror(ctypes.get_errno())}")
        once = divmod(interval_ns, NS_PER_SECOND)
        libc.timerfd_settime(self._fd, 0, (ctypes.c_long * 4)(*once, *once), None)  # an interval, and the first expiry

    def wait(self) -> int:
        """Return the number of intervals since the last call, at least one."""
        return int.from_bytes(os.read(self._fd, 8), "little")

    def __enter__(self) -> "Ticker":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)
