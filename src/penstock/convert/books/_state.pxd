"""The conversion state as an object. Compiled callers work on its `state` with the functions of _orders.pxd,
_book.pxd, _trades.pxd and _instruments.pxd; the pointer stays the same for the object's life, images included.

One thread at a time: whoever changes a state, or takes a chunk of its image, must be alone with it.
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


# A new session: no orders, no levels; statistics and trade logs begin anew; venue keys, trading states, restrictions, price
# limits, round lots and positions are forgotten, because the venue assigns them again. Symbols and instrument numbers stay,
# so the last price becomes the previous close of the same symbol; on the same trading date (the venue restarts its feed) the
# previous close stays as it is. Ends the images under way.
cdef void state_new_day(State *state, bint is_same_day) noexcept nogil
# No orders and no levels for one instrument, or for all; ends the images under way.
cdef void state_clear_book(State *state, uint64_t instrument) noexcept nogil
cdef void state_clear_books(State *state) noexcept nogil
