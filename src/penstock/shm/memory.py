"""Sealed memory files: what the producer makes, and what a consumer accepts.

A segment's file is sealed so that its size never changes (nobody can make the other side fault) and, except for a
doorbell, so that nobody but the producer can ever map it for writing. It has no name in any file system: when the last
process that holds it is gone, so is the memory.
"""

import fcntl
import os

from penstock.base.errors import SharedMemoryError
from penstock.shm._memory import Mapping

F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; not in the fcntl module yet
SEALS_OF_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

SEGMENT_SIZE_MAX = 1 << 36
"""Bytes of a segment."""


def create_memory(label: str, size: int, *, is_shared_writable: bool = False) -> tuple[int, Mapping]:
    """A new sealed file of zeros and this process's writable mapping of it; `label` shows up in /proc only."""
    if not 0 < size <= SEGMENT_SIZE_MAX:
        raise SharedMemoryError(f"a segment of {size} bytes cannot be made", hint=f"at most {SEGMENT_SIZE_MAX}")
    fd = -1
    try:
        fd = os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        mapping = Mapping(fd, size, is_writable=True)
        seals = SEALS_OF_SIZE | (0 if is_shared_writable else F_SEAL_FUTURE_WRITE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise SharedMemoryError(f"{size} bytes of shared memory cannot be had: {error.strerror}") from None
    return fd, mapping


def open_memory(fd: int, *, is_writable: bool = False) -> Mapping:
    """A mapping of a file that somebody else made; refused unless its size is sealed."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if seals & SEALS_OF_SIZE != SEALS_OF_SIZE:
            raise SharedMemoryError(
                "the segment's size is not sealed", hint="only segments made by Penstock can be opened"
            )
        size = os.fstat(fd).st_size
        if not 0 < size <= SEGMENT_SIZE_MAX:
            raise SharedMemoryError(f"the segment has {size} bytes", hint=f"1 to {SEGMENT_SIZE_MAX} are accepted")
        return Mapping(fd, size, is_writable=is_writable)
    except OSError as error:
        raise SharedMemoryError(f"not a shared memory segment: {error.strerror}") from None
