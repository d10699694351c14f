"""Segments that an attacker could create: any bytes, in memory that the test can change at any time."""

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.base.segment import Segment


@contextmanager
def forged(kind: str, *contents: bytes, is_sealed: bool = True) -> Iterator[tuple[Segment, list[mmap.mmap]]]:
    """A segment of these files' contents, and writable mappings of them."""
    fds, maps = [], []
    for content in contents:
        fd = os.memfd_create("forged", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.write(fd, content)
        fds.append(fd)
        maps.append(mmap.mmap(fd, len(content)))
        if is_sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    with Segment(kind, tuple(fds)) as segment:
        try:
            yield segment, maps
        finally:
            for each in maps:
                each.close()


def contents(segment: Segment) -> list[bytes]:
    """The content of a segment's files."""
    return [os.pread(fd, os.fstat(fd).st_size, 0) for fd in segment.fds]
