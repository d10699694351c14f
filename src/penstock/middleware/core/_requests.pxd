from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.wire._authentication cimport Authenticator
from penstock.wire._datagrams cimport DatagramBatch

cdef enum:
    BUCKETS = 4_096  # of sources, by a hash; colliding sources share tokens
    SETS = 512  # of requesters, by a hash
    WAYS = 8  # requesters in a set; the least recently heard one is replaced
    WORD_BITS = 64
    WORDS = 16
    WINDOW = WORDS * WORD_BITS # the newest numbers of a requester, of which each is admitted once; older numbers are refused


cdef struct Bucket:
    double tokens
    int64_t refilled_ns


cdef struct Requester:
    uint64_t requester  # 0: free
    uint64_t[WORDS] received  # bit n % WINDOW: request n, one of the newest WINDOW, was received
    int64_t heard_ns
    uint32_t newest


cdef class RequestGate:
    cdef Bucket *_buckets
    cdef Bucket _total
    cdef double _source_per_s
    cdef double _source_burst
    cdef double _total_per_s
    cdef double _total_burst
    cdef uint64_t _seed
    cdef uint64_t _publisher_id
    cdef Requester *_requesters  # only with an authenticator
    cdef Authenticator _authenticator
    cdef bint _is_authenticating
    cdef public uint64_t own
    cdef readonly uint64_t limited
    cdef readonly uint64_t stale

    # admit() in two steps: what needs no key, and the rest if there is an authenticator.
    cdef void admit_rows(self, DatagramBatch batch, int64_t now_ns) noexcept nogil
    cdef int admit_authentic(self, DatagramBatch batch, int64_t now_ns) except -1

    cdef bint is_own(self, uint64_t source) noexcept nogil
    cdef bint is_fresh(self, const uint8_t *data, uint32_t size, int64_t now_ns) noexcept nogil
    cdef bint takes_token(self, uint64_t source, int64_t now_ns) noexcept nogil
    cdef bint is_new(self, uint64_t requester, uint32_t number, int64_t now_ns) noexcept nogil
    cdef Requester *find_requester(self, uint64_t requester) noexcept nogil
    cdef uint64_t mixed(self, uint64_t value) noexcept nogil
    cdef bint is_for_others(self, const uint8_t *data, uint32_t size) noexcept nogil
    cdef bint is_within(self, uint64_t source, int64_t now_ns) noexcept nogil
