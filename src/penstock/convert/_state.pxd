"""The conversion state as an object. Compiled callers work on its `state` with the functions of _orders.pxd,
_book.pxd, _trades.pxd and _instruments.pxd; the pointer stays the same for the object's life, images included.

One thread at a time: whoever changes a state, or takes a chunk of its image, must be alone with it.
"""

from libc.stdint cimport uint32_t, uint64_t

from penstock.convert._units cimport Image, State


cdef class StateKernel:
    cdef State *state

    cdef uint32_t checked(self, object instrument) except? 0xFFFFFFFF


cdef class StateImage:
    cdef StateKernel kernel
    cdef Image *image

    cdef int check(self) except -1


# A new trading day: no orders, no levels, statistics and trade logs begin anew (the last price becomes the previous
# close); references, status and numbers stay. Ends the images under way.
cdef void state_new_day(State *state) noexcept nogil
# No orders and no levels for one instrument, or for all; ends the images under way.
cdef void state_clear_book(State *state, uint64_t instrument) noexcept nogil
cdef void state_clear_books(State *state) noexcept nogil
