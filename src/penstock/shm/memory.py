"""Sealed memory files: created by the producer, validated by the consumer.

A segment's file is sealed against size changes, so that no process can make another one fault, and (except for a
doorbell) against writing by other processes. The file has no name: its memory is freed when the last process closes it.
"""

import fcntl
import os

from penstock.base.errors import SharedMemoryError
from penstock.shm._memory import Mapping

F_SEAL_FUTURE_WRITE = 0x10  # Linux 5.1; not in the fcntl module yet
SEALS_OF_SIZE = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

SEGMENT_SIZE_MAX = 1 << 36
"""Maximum size of a segment in bytes."""


def create_memory(label: str, size: int, *, is_shared_writable: bool = False) -> tuple[int, Mapping]:
    """Create a sealed file of zeros and map it for writing; `label` is visible only in /proc."""
    if not 0 < size <= SEGMENT_SIZE_MAX:
        raise SharedMemoryError(f"invalid segment size {size}", hint=f"use 1 to {SEGMENT_SIZE_MAX} bytes")
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
        raise SharedMemoryError(f"cannot allocate {size} bytes of shared memory: {error.strerror}") from None
    return fd, mapping


def open_memory(fd: int, *, is_writable: bool = False) -> Mapping:
    """Map a file that another process created; refuse a file whose size is not sealed."""
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
