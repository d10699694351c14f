"""The authentication trailer of datagrams: made by senders, checked by receivers before anything else is looked at.

The tag is SipHash-2-4-128 of the packet and of the trailer up to the tag, in four lanes if these are long. docs/reference/protocol/packet.md draws the
layout.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import socket

from penstock.wire._codec cimport (
    KIND_NACK,
    PACKET_EPOCH_AT,
    PACKET_HEADER_SIZE,
    PACKET_KIND_AT,
    PACKET_PUBLISHER_ID_AT,
    PACKET_SIZE_AT,
    TRAILER_KEY_ID_AT,
    TRAILER_MAGIC,
    TRAILER_MAGIC_AT,
    TRAILER_SIZE,
    TRAILER_TAG_AT,
    TRAILER_VERSION,
    TRAILER_VERSION_AT,
    load_u16,
    load_u32,
    load_u64,
    store_u16,
    store_u32,
    store_u64,
)
from penstock.wire._datagrams cimport DatagramBatch

from penstock.base.errors import LocalProtocolError
from penstock.wire.authentication import KEY_SIZE

cdef extern from "penstock/wire/siphash.h" nogil:
    void siphash_128(const uint8_t *data, size_t size, uint64_t low, uint64_t high, uint64_t *out)
    void siphash_derive(siphash_keys *keys, uint64_t low, uint64_t high)
    void siphash_tag(const uint8_t *data, size_t size, const siphash_keys *keys, uint64_t *out)

cdef uint64_t NAMED = <uint64_t>1 << 63 # a source that is no IPv4 address: see DatagramBatch


def siphash(bytes data not None, bytes key not None) -> bytes:
    """SipHash-2-4 of the bytes, 128 bits of it."""
    cdef uint64_t out[2]
    check_key(key)
    siphash_128(<const uint8_t *>data, len(data), load_u64(<const uint8_t *>key), load_u64(<const uint8_t *>key + 8), out)
    return PyBytes_FromStringAndSize(<char *>out, sizeof(out))


def packet_tag(bytes data not None, bytes key not None) -> bytes:
    """The tag of a packet and the first bytes of its trailer."""
    cdef uint64_t out[2]
    cdef Key parsed
    parse_bytes(&parsed, key)
    siphash_tag(<const uint8_t *>data, len(data), &parsed.hashing, out)
    return PyBytes_FromStringAndSize(<char *>out, sizeof(out))


cdef int check_key(bytes data) except -1:
    if len(data) != KEY_SIZE:
        raise LocalProtocolError(f"an authentication key has {KEY_SIZE} bytes, not {len(data)}")
    return 0


cdef int parse_bytes(Key *key, bytes data) except -1:
    memset(key, 0, sizeof(Key))
    check_key(data)
    siphash_derive(&key.hashing, load_u64(<const uint8_t *>data), load_u64(<const uint8_t *>data + 8))
    return 0


cdef int parse_key(Key *key, source) except -1:
    parse_bytes(key, source.key)
    if not 1 <= source.key_id <= UINT32_MAX:
        raise LocalProtocolError(f"the key id {source.key_id} is not within 1 to 2**32 - 1")
    key.key_id = source.key_id
    return 0


cdef void write_trailer(uint8_t *packet, uint32_t size, const Key *key) noexcept nogil:
    cdef uint8_t *trailer = packet + size
    cdef uint64_t tag[2]
    store_u64(trailer, 0)
    store_u16(trailer + TRAILER_MAGIC_AT, TRAILER_MAGIC)
    trailer[TRAILER_VERSION_AT] = TRAILER_VERSION
    store_u32(trailer + TRAILER_KEY_ID_AT, key.key_id)
    if key.key_id:
        siphash_tag(packet, size + TRAILER_TAG_AT, &key.hashing, tag)
    else:
        tag[0] = tag[1] = 0
    memcpy(trailer + TRAILER_TAG_AT, tag, sizeof(tag))


cdef inline bint has_trailer(const uint8_t *data, uint32_t size) noexcept nogil:
    """Whether the datagram is a packet, by its size, and a trailer of this version."""
    cdef const uint8_t *trailer
    if size < PACKET_HEADER_SIZE + TRAILER_SIZE or load_u32(data + PACKET_SIZE_AT) != size - TRAILER_SIZE:
        return False
    trailer = data + size - TRAILER_SIZE
    return load_u16(trailer + TRAILER_MAGIC_AT) == TRAILER_MAGIC and trailer[TRAILER_VERSION_AT] == TRAILER_VERSION


cdef void strip_trailers(DatagramBatch batch) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(batch.count):
        if has_trailer(batch.data + index * batch.stride, batch.sizes[index]):
            batch.sizes[index] -= TRAILER_SIZE


def strip_trailer(data not None) -> memoryview:
    """The packet without the trailer that nobody here can check, if it has one."""
    cdef const uint8_t[::1] content = memoryview(data).cast("B")
    if content.shape[0] and has_trailer(&content[0], <uint32_t>min(content.shape[0], <Py_ssize_t>UINT32_MAX)):
        return memoryview(data)[: content.shape[0] - TRAILER_SIZE]
    return memoryview(data)


cdef uint64_t places_for(Py_ssize_t count) noexcept:
    cdef uint64_t places = 8
    while places < 2 * <uint64_t>count:
        places *= 2
    return places


cdef inline uint64_t mixed(uint64_t value) noexcept nogil:
    value *= <uint64_t>0x9E3779B97F4A7C15
    return value ^ value >> 32


cdef class AuthenticationTable:
    """Keys and publishers of some scopes. It never changes, so that one thread may use it while another makes the next
    one."""

    def __cinit__(self, scopes not None):
        cdef Py_ssize_t key_count = sum(len(each.keys) for each in scopes)
        cdef Py_ssize_t publisher_count = sum(len(each.publishers) for each in scopes)
        cdef Key key
        cdef uint32_t number
        self._key_mask = places_for(key_count) - 1
        self._vouched_mask = places_for(publisher_count) - 1
        self._keys = <Key *>PyMem_Calloc(self._key_mask + 1, sizeof(Key))
        self._vouched = <Vouched *>PyMem_Calloc(self._vouched_mask + 1, sizeof(Vouched))
        self._active = <Key *>PyMem_Calloc(max(1, len(scopes)), sizeof(Key))
        if self._keys is NULL or self._vouched is NULL or self._active is NULL:
            raise MemoryError
        for number, scope in enumerate(scopes):
            for each in scope.keys:
                parse_key(&key, each)
                key.scope = number
                self.add_key(&key)
                if each.key_id == scope.active_key_id:
                    self._active[number] = key
            for each in scope.publishers:
                self.add_publisher(each.publisher_id, number, each.epoch_first, each.epoch_last)

    def __dealloc__(self):
        PyMem_Free(self._keys)
        PyMem_Free(self._vouched)
        PyMem_Free(self._active)

    cdef int add_key(self, const Key *key) except -1:
        cdef uint64_t at = mixed(key.key_id) & self._key_mask
        while self._keys[at].key_id and self._keys[at].key_id != key.key_id:
            at = (at + 1) & self._key_mask
        if self._keys[at].key_id:
            raise LocalProtocolError(f"two authentication keys have the id {key.key_id}")
        self._keys[at] = key[0]
        return 0

    cdef int add_publisher(self, uint64_t publisher_id, uint32_t scope, uint32_t first, uint32_t last) except -1:
        cdef uint64_t at = mixed(publisher_id) & self._vouched_mask
        if publisher_id == 0:
            raise LocalProtocolError("a publisher id is never 0")
        while self._vouched[at].publisher_id and self._vouched[at].publisher_id != publisher_id:
            at = (at + 1) & self._vouched_mask
        if self._vouched[at].publisher_id:
            raise LocalProtocolError(f"publisher {publisher_id} is vouched for twice")
        self._vouched[at] = Vouched(publisher_id, scope, first, last)
        return 0

    cdef const Key *find_key(self, uint32_t key_id) noexcept nogil:
        """The key, or NULL."""
        cdef uint64_t at = mixed(key_id) & self._key_mask
        while self._keys[at].key_id:
            if self._keys[at].key_id == key_id:
                return &self._keys[at]
            at = (at + 1) & self._key_mask
        return NULL

    cdef const Vouched *find_publisher(self, uint64_t publisher_id) noexcept nogil:
        """What is vouched for of the publisher, or NULL."""
        cdef uint64_t at = mixed(publisher_id) & self._vouched_mask
        while self._vouched[at].publisher_id:
            if self._vouched[at].publisher_id == publisher_id:
                return &self._vouched[at]
            at = (at + 1) & self._vouched_mask
        return NULL


cdef class LeaseFlag:
    """Whether the lease of keys has ended. Several authenticators share a flag; any thread may set it."""

    def __cinit__(self, *, bint has_ended = True):
        self.has_ended = has_ended


cdef class Authenticator:
    """Makes and checks trailers. A datagram is authentic if its tag is right under a key of the scope of its publisher,
    and its epoch is vouched for. While the `lease` has ended, authentic datagrams are refused as well: somebody who was
    revoked may hold the keys.

    use() and trust() may be called in any thread; everything else in the thread that receives.
    """

    def __cinit__(self, scopes = (), *, trusted = (), LeaseFlag lease = None):
        self._table = AuthenticationTable(scopes)
        self._lease = lease
        self._trusted = frozenset()
        self.trust(trusted)
        self.update()

    def __dealloc__(self):
        PyMem_Free(self._trusted_keys)

    def use(self, scopes not None) -> None:
        """These keys and publishers in place of those before, from the next batch on."""
        self._next_table = AuthenticationTable(scopes)

    def trust(self, addresses not None, *, bint requests_only = False) -> None:
        """Replace the trusted addresses. Datagrams from a trusted address need no trailer: an application trusts its
        filter module. With `requests_only` the exemption holds for repair requests alone: a filter module trusts the
        applications of its host to ask for packets, not to send data."""
        self._next_trusted = (frozenset(addresses), requests_only)

    def trailer(self, packet not None) -> bytes:
        """The trailer for a packet, made with the active key of its publisher's scope."""
        cdef bytes data = bytes(packet) + bytes(TRAILER_SIZE)
        cdef uint32_t size = <uint32_t>(len(data) - TRAILER_SIZE)
        cdef const Vouched *vouched
        cdef Key key
        if size < PACKET_HEADER_SIZE:
            raise LocalProtocolError(f"{size} bytes are no packet")
        self.update()
        memset(&key, 0, sizeof(Key))
        vouched = self._table.find_publisher(load_u64(<const uint8_t *>data + PACKET_PUBLISHER_ID_AT))
        if vouched is not NULL:
            key = self._table._active[vouched.scope]
        write_trailer(<uint8_t *>PyBytes_AS_STRING(data), size, &key)
        return data[size:]

    def check(self, data not None, source) -> memoryview | None:
        """The packet of one datagram, without its trailer; None, counted, if it is not authentic."""
        cdef const uint8_t[::1] content = memoryview(data).cast("B")
        self.update()
        if source in self._trusted and self.is_exempt(&content[0] if content.shape[0] else NULL, content.shape[0]):
            return strip_trailer(data)
        if content.shape[0] == 0 or content.shape[0] > UINT32_MAX:
            self.unauthenticated += 1
            return None
        if not self.is_authentic(&content[0], <uint32_t>content.shape[0]):
            return None
        return memoryview(data)[: content.shape[0] - TRAILER_SIZE]

    def admit_batch(self, DatagramBatch batch not None) -> None:
        """Remove what is not authentic from the batch, and the trailers from what is."""
        self.admit(batch)

    cdef int update(self) except -1:
        """What another thread said meanwhile."""
        if self._next_table is not None:
            self._table, self._next_table = self._next_table, None
        if self._next_trusted is not None:
            (self._trusted, self._requests_only), self._next_trusted = self._next_trusted, None
            keys = sorted(key for key in map(source_key, self._trusted) if key)
            PyMem_Free(self._trusted_keys)
            self._trusted_count = 0
            self._trusted_keys = <uint64_t *>PyMem_Calloc(max(1, len(keys)), sizeof(uint64_t))
            if self._trusted_keys is NULL:
                raise MemoryError
            for key in keys:
                self._trusted_keys[self._trusted_count] = key
                self._trusted_count += 1
        return 0

    cdef int admit(self, DatagramBatch batch) except -1:
        self.update()
        if batch.count == 1:
            self.admit_rows(batch)
        else:
            with nogil:
                self.admit_rows(batch)
        return 0

    cdef void admit_rows(self, DatagramBatch batch) noexcept nogil:
        cdef Py_ssize_t index, kept = 0
        cdef uint8_t *data
        for index in range(batch.count):
            data = batch.data + index * batch.stride
            if (
                self._trusted_count + <Py_ssize_t>(batch.sources[index] >> 63)
                and self.is_exempt(data, batch.sizes[index])
                and self.is_trusted(batch, index)
            ):
                if has_trailer(data, batch.sizes[index]):
                    batch.sizes[index] -= TRAILER_SIZE
            elif self.is_authentic(data, batch.sizes[index]):
                batch.sizes[index] -= TRAILER_SIZE
            else:
                continue
            if kept < index:
                batch.move(kept, index)
            kept += 1
        batch.count = kept

    cdef bint is_exempt(self, const uint8_t *data, Py_ssize_t size) noexcept nogil:
        """Whether a datagram of this kind needs no trailer if its source is trusted."""
        if not self._requests_only:
            return True
        return size >= PACKET_HEADER_SIZE and data[PACKET_KIND_AT] == KIND_NACK

    cdef bint is_trusted(self, DatagramBatch batch, Py_ssize_t index) noexcept nogil:
        cdef uint64_t source = batch.sources[index]
        cdef Py_ssize_t low = 0, high = self._trusted_count, middle
        if source & NAMED:
            with gil:
                return batch.source(index) in self._trusted
        while low < high:
            middle = (low + high) // 2
            if self._trusted_keys[middle] < source:
                low = middle + 1
            else:
                high = middle
        return low < self._trusted_count and self._trusted_keys[low] == source

    cdef bint is_authentic(self, const uint8_t *data, uint32_t size) noexcept nogil:
        cdef const uint8_t *trailer = data + size - TRAILER_SIZE
        cdef const Vouched *vouched
        cdef const Key *key
        cdef uint32_t epoch
        cdef uint64_t tag[2]
        if not has_trailer(data, size):
            self.unauthenticated += 1
            return False
        key = self._table.find_key(load_u32(trailer + TRAILER_KEY_ID_AT))
        if key is NULL:
            self.unknown_key += 1
            return False
        vouched = self._table.find_publisher(load_u64(data + PACKET_PUBLISHER_ID_AT))
        epoch = load_u32(data + PACKET_EPOCH_AT)
        if vouched is NULL or vouched.scope != key.scope or not vouched.epoch_first <= epoch <= vouched.epoch_last:
            self.unvouched += 1
            return False
        siphash_tag(data, size - TRAILER_SIZE + TRAILER_TAG_AT, &key.hashing, tag)
        # all bits are compared, so that the time says nothing about how many are right
        if (tag[0] ^ load_u64(trailer + TRAILER_TAG_AT)) | (tag[1] ^ load_u64(trailer + TRAILER_TAG_AT + 8)):
            self.forged += 1
            return False
        if self._lease is not None and self._lease.has_ended:
            self.lease_ended += 1
            return False
        return True


def source_key(address) -> int:
    """The number that a batch has for an IPv4 address and port; 0 for any other."""
    try:
        host = int.from_bytes(socket.inet_pton(socket.AF_INET, address[0]), "big")
    except (OSError, ValueError):
        return 0
    return host << 16 | address[1]
