"""Messages consumed by transactions, kept until the standby has the transaction."""

from libc.stdint cimport uint32_t

from penstock.assured.core.router._tables cimport Tables

cdef int tell_consumed(Tables tables) except -1
cdef int return_consumed(Tables tables, uint32_t place) except -1
