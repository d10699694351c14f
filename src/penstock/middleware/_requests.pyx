"""Repair requests that come too fast are dropped before Python looks at them."""

from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from penstock.wire._authentication cimport Authenticator
from penstock.wire._codec cimport (
    KIND_NACK,
    PACKET_HEADER_SIZE,
    PACKET_KIND_AT,
    PACKET_MAGIC,
    PACKET_MAGIC_AT,
    PACKET_PUBLISHER_ID_AT,
    load_u16,
    load_u64,
)
from penstock.wire._datagrams cimport DatagramBatch

cdef enum:
    BUCKETS = 4_096 # of sources, by a hash; those that share one share its tokens

cdef double NS_PER_S = 1e9


cdef struct Bucket:
    double tokens
    int64_t refilled_ns


cdef class RequestGate:
    """Token buckets of requests, one for each source and one for all. What is no request to the publisher, or comes from
    its `own` address, is removed without a word: on a shared group it hears everybody. With an `authenticator`, a request that is not
    authentic takes no tokens, so nobody without a key uses up those of others."""

    cdef Bucket *_buckets
    cdef Bucket _total
    cdef double _source_per_s
    cdef double _source_burst
    cdef double _total_per_s
    cdef double _total_burst
    cdef uint64_t _seed
    cdef uint64_t _publisher_id
    cdef uint64_t _own
    cdef Authenticator _authenticator
    cdef readonly uint64_t limited

    def __cinit__(
        self, uint64_t seed, *, uint64_t publisher_id, uint64_t own, double source_per_s, double source_burst, double total_per_s, double total_burst,
        Authenticator authenticator = None,
    ):
        self._seed = seed
        self._publisher_id = publisher_id
        self._own = own
        self._source_per_s = source_per_s
        self._source_burst = source_burst
        self._total_per_s = total_per_s
        self._total_burst = total_burst
        self._authenticator = authenticator
        self._buckets = <Bucket *>PyMem_Calloc(BUCKETS, sizeof(Bucket))
        if self._buckets is NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self._buckets)

    def admit(self, DatagramBatch batch not None, int64_t now_ns) -> None:
        """Remove from the batch what comes too fast or is not authentic. Trailers stay."""
        cdef Py_ssize_t index, kept = 0
        if self._authenticator is not None:
            self._authenticator.update()
        for index in range(batch.count):
            if batch.sources[index] == self._own or self.is_for_others(
                batch.data + index * batch.stride, batch.sizes[index]
            ):
                continue
            if self._authenticator is not None and not self._authenticator.is_authentic(
                batch.data + index * batch.stride, batch.sizes[index]
            ):
                continue
            if not self.is_within(batch.sources[index], now_ns):
                self.limited += 1
                continue
            if kept < index:
                batch.move(kept, index)
            kept += 1
        batch.count = kept

    cdef bint is_for_others(self, const uint8_t *data, uint32_t size) noexcept:
        if size < PACKET_HEADER_SIZE or load_u16(data + PACKET_MAGIC_AT) != PACKET_MAGIC:
            return False # damaged: the core counts it
        return data[PACKET_KIND_AT] != KIND_NACK or load_u64(data + PACKET_PUBLISHER_ID_AT) != self._publisher_id

    cdef bint is_within(self, uint64_t source, int64_t now_ns) noexcept:
        cdef uint64_t mixed = (source ^ self._seed) * <uint64_t>0x9E3779B97F4A7C15
        cdef Bucket *bucket = &self._buckets[(mixed ^ mixed >> 32) % BUCKETS]
        refill(bucket, self._source_per_s, self._source_burst, now_ns)
        refill(&self._total, self._total_per_s, self._total_burst, now_ns)
        if bucket.tokens < 1 or self._total.tokens < 1:
            return False
        bucket.tokens -= 1
        self._total.tokens -= 1
        return True


cdef inline void refill(Bucket *bucket, double per_s, double burst, int64_t now_ns) noexcept:
    if bucket.refilled_ns == 0:
        bucket.tokens = burst
    elif now_ns > bucket.refilled_ns:
        bucket.tokens = min(burst, bucket.tokens + (now_ns - bucket.refilled_ns) * per_s / NS_PER_S)
    bucket.refilled_ns = now_ns
