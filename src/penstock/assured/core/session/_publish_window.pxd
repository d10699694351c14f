from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef enum:
    OUTCOME_COUNT = 64


cdef struct Slot:  # a message that is not acknowledged, or one of the last acknowledged ones
    uint8_t *data  # in the format of PUBLISH: head, topic, payload, zeros
    uint32_t size
    uint32_t room
    uint32_t transaction
    uint8_t outcome  # 0: none yet


cdef class PublishWindow:
    cdef readonly uint32_t messages_max
    cdef readonly uint64_t bytes_max
    cdef public uint64_t payload_size_max  # the router's limit
    cdef readonly uint64_t next_number
    cdef readonly uint64_t unresolved  # the lowest number without an outcome; next_number: none
    cdef readonly uint64_t waiting_bytes  # of messages without an outcome
    cdef readonly uint64_t refused  # total number of refused messages
    cdef readonly uint64_t answered  # the number after the highest one with an outcome
    cdef uint64_t unsent  # the lowest number that was not sent on this link
    cdef uint32_t committing  # the transaction whose messages are not sent again; 0: none
    cdef Slot *slots
    cdef uint64_t told[OUTCOME_COUNT]  # number of messages by outcome
    cdef list full  # (first, last, endpoint, limit) of messages for which endpoints had no room
    cdef uint8_t *outcomes  # of the last numbers

    cdef Slot *slot(self, uint64_t number) noexcept nogil
    cdef bint resolve(self, uint64_t first, uint64_t last, uint8_t outcome) noexcept nogil
    cdef void give(self, uint64_t number, uint8_t outcome) noexcept nogil
    cdef void advance(self) noexcept nogil
    cdef uint64_t _frame_end(self, uint64_t first, uint64_t *size) noexcept nogil
    cdef uint64_t _frames_size(self, uint64_t first) noexcept nogil
    cdef uint8_t *_write_frame(
        self, uint8_t *out, uint32_t handle, uint64_t first, uint64_t after, uint64_t size
    ) noexcept nogil
