"""Settings of the C library's memory allocator for nodes."""

import ctypes

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
ARENAS_MAX = 2
MAPPED_FROM = 1024 * 1024


def limit_allocator() -> None:
    """Configure the allocator so that unused allocations take no memory.

    By default, each thread has an arena that never shrinks, and after large blocks were freed, later ones come from the
    heap, where calloc() writes to all of their pages. Before the first thread starts.
    """
    libc = ctypes.CDLL(None)
    libc.mallopt(M_ARENA_MAX, ARENAS_MAX)
    libc.mallopt(M_MMAP_THRESHOLD, MAPPED_FROM)
