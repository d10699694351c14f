from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef class Delivery:
    cdef readonly uint64_t id
    cdef readonly str topic
    cdef readonly bytes payload
    cdef readonly uint8_t priority
    cdef readonly bint is_redelivered
    cdef readonly bint is_replayed
    cdef readonly uint32_t deliveries
    cdef readonly uint16_t model_id
    cdef readonly uint16_t model_version
    cdef readonly int64_t published_ns
    cdef readonly uint64_t publisher
    cdef readonly uint64_t number
    cdef readonly uint32_t opened
    cdef readonly bint is_settled
    cdef readonly str dead_reason
    cdef readonly str dead_from
    cdef readonly object source


cdef class Inbox:
    cdef public object source  # the owner of these messages
    cdef public dict named  # endpoints, by the router's numbers
    cdef readonly uint64_t waiting  # unread messages
    cdef readonly uint64_t came  # received since it was opened
    cdef uint32_t opened
    cdef list frames
    cdef Py_ssize_t frame  # the current frame
    cdef uint64_t at  # offset of its next message
    cdef uint32_t left  # messages left in it


cdef class Settlements:
    cdef readonly uint64_t settled  # messages settled since it was opened
    cdef readonly uint32_t opened
    cdef uint32_t count  # waiting runs
    cdef uint32_t room
    cdef uint8_t *runs  # Run, each with its transaction

    cdef int grow(self) except -1
    cdef bint _begins(self, uint32_t index, uint32_t first) noexcept nogil
