"""A file that stays mapped into this process while its Mapping exists."""

from libc.errno cimport errno
from posix.mman cimport MAP_FAILED, MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

import os

cdef extern from "penstock/shm/memory.h" nogil:
    enum:
        MADV_POPULATE_READ
    int madvise(void *start, size_t size, int advice)


cdef class Mapping:
    """`size` bytes of the file `fd`, shared with other processes.

    There is no close(): code that uses the memory without the GIL holds a reference, and the memory is unmapped with
    the last reference.
    """

    def __cinit__(self, int fd, size_t size, *, bint is_writable):
        cdef int protection = PROT_READ | PROT_WRITE if is_writable else PROT_READ
        cdef void *start = mmap(NULL, size, protection, MAP_SHARED | (MAP_POPULATE if is_writable else 0), fd, 0)
        if start is MAP_FAILED:
            raise OSError(errno, os.strerror(errno))
        self.start = <uint8_t *>start
        self.size = size

    def __dealloc__(self):
        if self.start is not NULL:
            munmap(self.start, self.size)

    def populate(self) -> bool:
        """Fault in all pages now instead of at their first use; False if the kernel does not support this."""
        cdef int result
        with nogil:
            result = madvise(self.start, self.size, MADV_POPULATE_READ)
        return result == 0

