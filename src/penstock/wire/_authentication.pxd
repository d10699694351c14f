from libc.stdint cimport uint8_t, uint32_t, uint64_t

from penstock.wire._datagrams cimport DatagramBatch


cdef extern from "penstock/wire/siphash.h" nogil:
    ctypedef struct siphash_keys:
        pass


cdef struct Key:
    siphash_keys hashing
    uint32_t key_id # 0: no key, or a free slot
    uint32_t scope


cdef struct Vouched:
    uint64_t publisher_id # 0: a free slot
    uint32_t scope
    uint32_t epoch_first
    uint32_t epoch_last


# Write the trailer after the `size` bytes at `packet`; without a key (id 0) its tag is zero.
cdef void write_trailer(uint8_t *packet, uint32_t size, const Key *key) noexcept nogil

# Write the trailers of two packets at the same time, which is faster.
cdef void write_two_trailers(
    uint8_t *packet, uint32_t size, uint8_t *other, uint32_t other_size, const Key *key
) noexcept nogil

cdef int parse_key(Key *key, source) except -1


cdef class AuthenticationTable:
    cdef Key *_keys                # open addressing by key id
    cdef uint64_t _key_mask
    cdef Vouched *_vouched         # open addressing by publisher id
    cdef uint64_t _vouched_mask
    cdef Key *_active              # the active key of each scope

    cdef int add_key(self, const Key *key) except -1
    cdef int add_publisher(self, uint64_t publisher_id, uint32_t scope, uint32_t first, uint32_t last) except -1
    cdef const Key *find_key(self, uint32_t key_id) noexcept nogil
    cdef const Vouched *find_publisher(self, uint64_t publisher_id) noexcept nogil


cdef enum:
    PEER_KEYS_MAX = 2


cdef struct Peer:
    uint64_t source # as a batch has it; 0 for an address that is not numeric
    uint32_t key_count
    Key[PEER_KEYS_MAX] keys


# The tag of the next datagram of a batch, computed together with the tag of the current one. It is valid while the rows
# of the batch are checked, and for the datagram at `data` under `key` only.
cdef struct Lookahead:
    const uint8_t *following # the datagram after the current one; NULL: there is none
    uint32_t following_size
    const Key *key           # NULL: no tag was computed
    const uint8_t *data
    uint64_t[2] tag


cdef class LeaseFlag:
    cdef public bint has_ended


cdef class Authenticator:
    cdef AuthenticationTable _table
    cdef AuthenticationTable _next_table  # set by any thread, used from the next batch on
    cdef Peer *_peers                     # sorted by source
    cdef Py_ssize_t _peer_count
    cdef dict _peer_places                # by address
    cdef bint _requests_only              # peers may only send repair requests
    cdef bint _is_open                    # datagrams from others need no trailer
    cdef object _next_peers               # arguments of trust(), set by any thread
    cdef LeaseFlag _lease                 # None: the keys have no lease
    cdef readonly uint64_t unauthenticated
    cdef readonly uint64_t unknown_key
    cdef readonly uint64_t unvouched
    cdef readonly uint64_t forged
    cdef readonly uint64_t lease_ended

    cdef int update(self) except -1
    cdef int admit(self, DatagramBatch batch) except -1
    cdef void admit_rows(self, DatagramBatch batch) noexcept nogil
    cdef int set_peers(self, dict peers) except -1
    cdef const Peer *find_peer(self, address)
    cdef const Peer *find_peer_of(self, DatagramBatch batch, Py_ssize_t index) noexcept nogil
    cdef bint is_for_peers(self, const uint8_t *data, Py_ssize_t size) noexcept nogil

    # `ahead` is NULL for a datagram that is checked alone.
    cdef bint is_of_peer(self, const uint8_t *data, uint32_t size, const Peer *peer, Lookahead *ahead) noexcept nogil
    cdef bint has_right_tag(self, const uint8_t *data, uint32_t size, const Key *key, Lookahead *ahead) noexcept nogil
    cdef bint is_authentic(self, const uint8_t *data, uint32_t size, Lookahead *ahead) noexcept nogil


# Remove trailers that cannot be checked.
cdef void strip_trailers(DatagramBatch batch) noexcept nogil
