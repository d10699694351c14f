"""The conversion state as an object. Compiled callers work on its `state` with the functions of _orders.pxd, _book.pxd,
_trades.pxd and _instruments.pxd; the pointer stays the same for the object's life, images included.

Not thread-safe: only one thread at a time may change a state or take a chunk of its image.
"""

from libc.stdint cimport uint32_t, uint64_t

from penstock.convert.books._units cimport Image, State


cdef class StateKernel:
    cdef State *state

    cdef uint32_t checked(self, object instrument) except? 0xFFFFFFFF


cdef class StateImage:
    cdef StateKernel kernel
    cdef Image *image

    cdef int check(self) except -1


# Begin a session: no orders, no levels, empty statistics and trade logs. Venue keys, trading states, restrictions,
# price limits, round lots and positions are cleared, because the venue assigns them again. Symbols and instrument
# numbers stay, so the last price becomes the previous close of the same symbol; on the same trading date (the venue
# restarts its feed) the previous close is kept. Invalidates open images.
cdef void state_new_day(State *state, bint is_same_day) noexcept nogil
# Remove orders and levels of one instrument, or of all; invalidates open images.
cdef void state_clear_book(State *state, uint64_t instrument) noexcept nogil
cdef void state_clear_books(State *state) noexcept nogil
