from penstock.feed.core.play._itch cimport Flow


cdef class OrderFlow:
    cdef Flow flow
    cdef readonly object symbols
