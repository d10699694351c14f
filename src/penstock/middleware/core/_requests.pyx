"""RequestGate: drops repair requests that are not authentic, are repeated, or exceed the rate, before they reach
Python."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport UINT32_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memset

from penstock.wire._authentication cimport Authenticator
from penstock.wire._codec cimport (
    KIND_NACK,
    PACKET_GAP_AT,
    PACKET_HEADER_SIZE,
    PACKET_KIND_AT,
    PACKET_MAGIC,
    PACKET_MAGIC_AT,
    PACKET_PUBLISHER_ID_AT,
    PACKET_SEQUENCE_AT,
    load_u16,
    load_u32,
    load_u64,
)
from penstock.wire._datagrams cimport DatagramBatch

REQUESTERS_MAX = SETS * WAYS
"""Number of requesters that a publisher with keys remembers."""

REQUEST_WINDOW = WINDOW
"""Number of newest requests of a requester that may arrive in any order. A receiver of many groups sends its
requests to all of them at once, and a publisher reads them from several sockets in turn."""

cdef double NS_PER_S = 1e9


cdef class RequestGate:
    """Admits repair requests to one publisher. Datagrams that are not requests to the publisher, or that come from its
    `own` address, are removed and not counted: on a shared group a publisher receives all packets.

    Requests take tokens from a bucket per source and from one for all. With an `authenticator`, a request takes
    tokens only if it is authentic and was not received before: requesters number their requests, and the gate
    remembers the newest 1,024 numbers of each of the 4,096 requesters heard last (an anti-replay window, as in
    IPsec; 152 bytes per requester). A host without a key therefore uses no tokens, and a recorded request is
    answered at most once.
    """

    def __cinit__(
        self, uint64_t seed, *, uint64_t publisher_id, double source_per_s, double source_burst, double total_per_s,
        double total_burst, Authenticator authenticator = None, uint64_t own = 0,
    ):
        self._seed = seed
        self._publisher_id = publisher_id
        self.own = own
        self._source_per_s = source_per_s
        self._source_burst = source_burst
        self._total_per_s = total_per_s
        self._total_burst = total_burst
        self._authenticator = authenticator
        self._is_authenticating = authenticator is not None
        self._buckets = <Bucket *>PyMem_Calloc(BUCKETS, sizeof(Bucket))
        if authenticator is not None:
            self._requesters = <Requester *>PyMem_Calloc(SETS * WAYS, sizeof(Requester))
        if self._buckets is NULL or (authenticator is not None and self._requesters is NULL):
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._buckets)
        PyMem_Free(self._requesters)

    def admit(self, DatagramBatch batch not None, int64_t now_ns) -> None:
        """Remove all datagrams from the batch that are not admitted. Trailers stay."""
        self.admit_rows(batch, now_ns)
        self.admit_authentic(batch, now_ns)

    cdef void admit_rows(self, DatagramBatch batch, int64_t now_ns) noexcept nogil:
        cdef Py_ssize_t index, kept = 0
        cdef const uint8_t *data
        for index in range(batch.count):
            data = batch.data + index * batch.stride
            if self.is_own(batch.sources[index]) or self.is_for_others(data, batch.sizes[index]):
                continue
            if not self._is_authenticating and not self.takes_token(batch.sources[index], now_ns):
                continue
            if kept < index:
                batch.move(kept, index)
            kept += 1
        batch.count = kept

    cdef int admit_authentic(self, DatagramBatch batch, int64_t now_ns) except -1:
        cdef Py_ssize_t index, kept = 0
        if not self._is_authenticating:
            return 0
        self._authenticator.update()
        for index in range(batch.count):
            if not self.is_fresh(batch.data + index * batch.stride, batch.sizes[index], now_ns):
                continue
            if not self.takes_token(batch.sources[index], now_ns):
                continue
            if kept < index:
                batch.move(kept, index)
            kept += 1
        batch.count = kept
        return 0

    def admits(self, data not None, uint64_t source, int64_t now_ns) -> bool:
        """True if a single datagram is admitted; `source` is a number for its address."""
        cdef const uint8_t[::1] content = memoryview(data).cast("B")
        cdef const uint8_t *start = &content[0] if content.shape[0] else NULL
        cdef uint32_t size = <uint32_t>content.shape[0]
        if content.shape[0] > UINT32_MAX or self.is_own(source) or self.is_for_others(start, size):
            return False
        if self._is_authenticating:
            self._authenticator.update()
            if not self.is_fresh(start, size, now_ns):
                return False
        return self.takes_token(source, now_ns)

    cdef bint is_own(self, uint64_t source) noexcept nogil:
        return self.own != 0 and source == self.own

    cdef bint is_fresh(self, const uint8_t *data, uint32_t size, int64_t now_ns) noexcept nogil:
        """True if the request is authentic and was not received before."""
        if not self._authenticator.is_authentic(data, size, NULL):
            return False
        if not self.is_new(load_u64(data + PACKET_SEQUENCE_AT), load_u32(data + PACKET_GAP_AT), now_ns):
            self.stale += 1
            return False
        return True

    cdef bint takes_token(self, uint64_t source, int64_t now_ns) noexcept nogil:
        if self.is_within(source, now_ns):
            return True
        self.limited += 1
        return False

    cdef bint is_new(self, uint64_t requester, uint32_t number, int64_t now_ns) noexcept nogil:
        """True if the number is among the requester's newest 1,024 and was not received before. The number is then
        recorded."""
        cdef Requester *found = self.find_requester(requester)
        cdef uint64_t *word = &found.received[number % WINDOW // WORD_BITS]
        cdef uint64_t bit = <uint64_t>1 << number % WORD_BITS
        if requester == 0 or number == 0:
            return False
        if found.requester != requester:
            memset(found.received, 0, sizeof(found.received))
            found.requester, found.newest = requester, number
        elif number > found.newest:
            advance(found, number)
        elif found.newest - number >= WINDOW or word[0] & bit:
            return False
        word[0] |= bit
        found.heard_ns = now_ns
        return True

    cdef Requester *find_requester(self, uint64_t requester) noexcept nogil:
        """Return the requester's place, or the place in its set that is free or least recently heard."""
        cdef Requester *places = &self._requesters[self.mixed(requester) % SETS * WAYS]
        cdef Requester *oldest = places
        cdef int way
        for way in range(WAYS):
            if places[way].requester == requester:
                return &places[way]
            if oldest.requester and (places[way].requester == 0 or places[way].heard_ns < oldest.heard_ns):
                oldest = &places[way]
        return oldest

    cdef uint64_t mixed(self, uint64_t value) noexcept nogil:
        value = (value ^ self._seed) * <uint64_t>0x9E3779B97F4A7C15
        return value ^ value >> 32

    cdef bint is_for_others(self, const uint8_t *data, uint32_t size) noexcept nogil:
        if size < PACKET_HEADER_SIZE or load_u16(data + PACKET_MAGIC_AT) != PACKET_MAGIC:
            return False  # damaged: counted by the core
        return data[PACKET_KIND_AT] != KIND_NACK or load_u64(data + PACKET_PUBLISHER_ID_AT) != self._publisher_id

    cdef bint is_within(self, uint64_t source, int64_t now_ns) noexcept nogil:
        cdef Bucket *bucket = &self._buckets[self.mixed(source) % BUCKETS]
        refill(bucket, self._source_per_s, self._source_burst, now_ns)
        refill(&self._total, self._total_per_s, self._total_burst, now_ns)
        if bucket.tokens < 1 or self._total.tokens < 1:
            return False
        bucket.tokens -= 1
        self._total.tokens -= 1
        return True


cdef inline void advance(Requester *found, uint32_t number) noexcept nogil:
    """Make `number` the newest one; the numbers in between have not been received yet."""
    cdef uint32_t each
    if number - found.newest >= WINDOW:
        memset(found.received, 0, sizeof(found.received))
    else:
        for each in range(found.newest + 1, number):
            found.received[each % WINDOW // WORD_BITS] &= ~(<uint64_t>1 << each % WORD_BITS)
    found.newest = number


cdef inline void refill(Bucket *bucket, double per_s, double burst, int64_t now_ns) noexcept nogil:
    if bucket.refilled_ns == 0:
        bucket.tokens = burst
    elif now_ns > bucket.refilled_ns:
        bucket.tokens = min(burst, bucket.tokens + (now_ns - bucket.refilled_ns) * per_s / NS_PER_S)
    bucket.refilled_ns = now_ns
