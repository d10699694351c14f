"""Read lines from a descriptor; the reader can be stopped while it waits."""

import os
import select
from collections.abc import Callable, Iterator

from penstock.base.errors import LimitError

LOOK_SECONDS = 0.1


def numbered_lines(descriptor: int, size_max: int, is_over: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
    """Yield (1, first line), (2, second line) and so on, without line ends. Raise LimitError if a line is too long."""
    number, pending = 0, b""
    while not is_over():
        if not select.select([descriptor], [], [], LOOK_SECONDS)[0]:
            continue
        data = os.read(descriptor, 65_536)
        if not data:
            break
        *lines, pending = (pending + data).split(b"\n")
        for line in lines:
            number += 1
            yield number, line.removesuffix(b"\r")
            if is_over():
                return
        if len(pending) > size_max:
            raise LimitError(f"is longer than {size_max} bytes", where=f"line {number + 1}")
    if pending and not is_over():
        yield number + 1, pending
