from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t

from penstock.filter.core.kernel._condition cimport Terms

cpdef enum Mode:
    """Kinds of consumers and of their packets."""
    OWN = 1  # one application: only its messages
    MASK = 2  # a host: each message has a mask of the applications that it matches
    RESIDUAL = 3  # a host: messages that match for any application, which match them again


cdef struct Slot:
    const Terms *terms  # NULL: no condition
    uint32_t consumer  # NOBODY: the slot is free
    uint16_t bit


cdef struct Home:  # place of an application
    uint64_t application
    uint32_t consumer
    uint16_t bit


cdef struct Consumer:
    uint64_t packet  # the packet, as counted by `work_count`, that the takings belong to
    uint32_t first  # first of its takings; 0: none
    uint32_t last
    uint32_t count
    uint32_t size  # bytes of the messages taken
    uint8_t mode  # 0: the consumer is free
    uint8_t word_count  # words of its masks
    uint64_t packets_out
    uint64_t messages_out


cdef class Consumers:
    cdef readonly uint32_t consumers_max
    cdef readonly uint32_t slots_max
    cdef Slot *slots
    cdef Consumer *consumers
    cdef dict _conditions  # by slot; owners of the objects that slots point to
    cdef Home *_homes  # sorted by application
    cdef uint64_t _home_count, _home_capacity

    cdef const Home *home_of(self, uint64_t application) noexcept nogil
    cdef int check_consumer(self, uint64_t consumer) except -1
    cdef int check_place(self, uint64_t consumer, uint64_t bit) except -1
    cdef int check_slot(self, uint64_t slot) except -1


cdef uint32_t NOBODY
