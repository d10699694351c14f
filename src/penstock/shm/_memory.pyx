"""A file mapped into this process for as long as the Mapping lives."""

from libc.errno cimport errno
from posix.mman cimport MAP_FAILED, MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE, mmap, munmap

import os

cdef extern from "penstock/shm/memory.h" nogil:
    enum:
        MADV_POPULATE_READ
    int madvise(void *start, size_t size, int advice)


cdef class Mapping:
    """`size` bytes of the file `fd`, shared with whoever else maps it.

    There is no close(): code that works on the memory without the interpreter's lock holds a reference, and the memory
    goes when the last one does.
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
        """Fault all pages in now rather than at their first use; False where the kernel cannot."""
        cdef int result
        with nogil:
            result = madvise(self.start, self.size, MADV_POPULATE_READ)
        return result == 0

