"""The receivers behind a filter: consumers, the slots of their applications, and the place of each application."""

from libc.stdint cimport UINT32_MAX, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memmove, memset

from penstock.filter.core.kernel._account cimport grow
from penstock.filter.core.kernel._condition cimport Condition

from penstock.base.errors import LimitError, LocalProtocolError

cdef enum:
    WORD_BITS = 64
    BITS_MAX = 1_024  # maximum number of applications per consumer

cdef uint32_t NOBODY = UINT32_MAX


cdef class Consumers:
    """A consumer is a receiver with its own copy. Slots are the subscribers of an interest table: an application's
    interests under one condition. Callers choose all numbers, which are small."""

    def __cinit__(self, *_, uint32_t consumers_max, uint32_t slots_max, **__):
        cdef uint32_t slot
        self.consumers_max = consumers_max
        self.slots_max = slots_max
        self._conditions = {}
        self.slots = <Slot *>calloc(<size_t>slots_max + 1, sizeof(Slot))
        self.consumers = <Consumer *>calloc(<size_t>consumers_max + 1, sizeof(Consumer))
        if self.slots is NULL or self.consumers is NULL:
            raise MemoryError
        for slot in range(slots_max):
            self.slots[slot].consumer = NOBODY

    def __dealloc__(self):
        free(self.slots)
        free(self.consumers)
        free(self._homes)

    def set_consumer(self, uint64_t consumer, Mode mode) -> None:
        if consumer >= self.consumers_max:
            raise LimitError(f"consumer {consumer} is not below {self.consumers_max}", hint="raise consumers_max")
        if mode not in (OWN, MASK, RESIDUAL):
            raise LocalProtocolError(f"unknown mode {mode}")
        if self.consumers[consumer].mode:
            raise LocalProtocolError(f"consumer {consumer} already exists")
        memset(&self.consumers[consumer], 0, sizeof(Consumer))
        self.consumers[consumer].mode = mode
        self.consumers[consumer].word_count = 1 if mode == MASK else 0

    def clear_consumer(self, uint64_t consumer) -> None:
        """Remove a consumer with its slots and applications."""
        cdef uint32_t slot
        self.check_consumer(consumer)
        for slot in range(self.slots_max):
            if self.slots[slot].consumer == consumer:
                self.clear_slot(slot)
        for application in [
            self._homes[at].application for at in range(self._home_count) if self._homes[at].consumer == consumer
        ]:
            self.clear_application(application)
        self.consumers[consumer].mode = 0

    def counts(self, uint64_t consumer) -> tuple:
        """Numbers of packets and of messages written for the consumer."""
        self.check_consumer(consumer)
        return self.consumers[consumer].packets_out, self.consumers[consumer].messages_out

    def set_slot(self, uint64_t slot, uint64_t consumer, uint64_t bit = 0, condition = None) -> None:
        """Route messages that match for the table's subscriber `slot` to the consumer, for its application `bit`.

        `condition` is an argument of Condition; without one, all messages on matching topics match.
        """
        cdef Condition terms = None if condition is None else Condition(condition)
        self.check_slot(slot)
        self.check_place(consumer, bit)
        self.slots[slot].consumer = <uint32_t>consumer
        self.slots[slot].bit = <uint16_t>bit
        self.slots[slot].terms = NULL if terms is None else &terms.terms
        self._conditions[slot] = terms

    def clear_slot(self, uint64_t slot) -> None:
        self.check_slot(slot)
        self.slots[slot].consumer = NOBODY
        self.slots[slot].terms = NULL
        self._conditions.pop(slot, None)

    def set_application(self, uint64_t application, uint64_t consumer, uint64_t bit = 0) -> None:
        """Route messages addressed to the application to the consumer."""
        cdef uint64_t at = 0
        self.check_place(consumer, bit)
        self.clear_application(application)
        if grow(<void **>&self._homes, &self._home_capacity, self._home_count + 1, sizeof(Home)):
            raise MemoryError
        while at < self._home_count and self._homes[at].application < application:
            at += 1
        memmove(self._homes + at + 1, self._homes + at, (self._home_count - at) * sizeof(Home))
        self._homes[at].application = application
        self._homes[at].consumer = <uint32_t>consumer
        self._homes[at].bit = <uint16_t>bit
        self._home_count += 1

    def clear_application(self, uint64_t application) -> None:
        cdef const Home *home = self.home_of(application)
        cdef uint64_t at
        if home is not NULL:
            at = home - self._homes
            self._home_count -= 1
            memmove(self._homes + at, self._homes + at + 1, (self._home_count - at) * sizeof(Home))

    cdef const Home *home_of(self, uint64_t application) noexcept nogil:
        cdef uint64_t low = 0, high = self._home_count, middle
        while low < high:
            middle = (low + high) // 2
            if self._homes[middle].application < application:
                low = middle + 1
            else:
                high = middle
        if low == self._home_count or self._homes[low].application != application:
            return NULL
        return self._homes + low

    cdef int check_consumer(self, uint64_t consumer) except -1:
        if consumer >= self.consumers_max or not self.consumers[consumer].mode:
            raise LocalProtocolError(f"unknown consumer {consumer}")
        return 0

    cdef int check_place(self, uint64_t consumer, uint64_t bit) except -1:
        """Check the numbers, and make room for the bit in the consumer's masks."""
        self.check_consumer(consumer)
        if bit >= BITS_MAX:
            raise LimitError(f"application {bit} of consumer {consumer} is not below {BITS_MAX}")
        if self.consumers[consumer].mode == MASK:
            self.consumers[consumer].word_count = max(self.consumers[consumer].word_count, bit // WORD_BITS + 1)
        return 0

    cdef int check_slot(self, uint64_t slot) except -1:
        if slot >= self.slots_max:
            raise LimitError(f"slot {slot} is not below {self.slots_max}", hint="raise slots_max")
        return 0
