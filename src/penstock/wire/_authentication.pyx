"""The authentication trailer of datagrams: created by senders, checked by receivers before any other processing.

The tag is SipHash-2-4-128 of the packet and of the trailer up to the tag, computed in four lanes for long packets.
docs/reference/protocol/packet.md draws the layout.
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
)
from penstock.wire._datagrams cimport DatagramBatch

from penstock.base.errors import LocalProtocolError
from penstock.wire.authentication import KEY_SIZE

cdef extern from "penstock/wire/siphash.h" nogil:
    void siphash_128(const uint8_t *data, size_t size, uint64_t low, uint64_t high, uint64_t *out)
    void siphash_derive(siphash_keys *keys, uint64_t low, uint64_t high)
    void siphash_tag(const uint8_t *data, size_t size, const siphash_keys *keys, uint64_t *out)
    void siphash_tag_two(
        const uint8_t *data, size_t size, const uint8_t *other, size_t other_size, const siphash_keys *keys,
        uint64_t *out, uint64_t *other_out,
    )

cdef uint64_t NAMED = <uint64_t>1 << 63 # a source that is not an IPv4 address: see DatagramBatch


def siphash(bytes data not None, bytes key not None) -> bytes:
    """Return the 128-bit SipHash-2-4 of the bytes."""
    cdef uint64_t out[2]
    check_key(key)
    siphash_128(<const uint8_t *>data, len(data), load_u64(<const uint8_t *>key), load_u64(<const uint8_t *>key + 8), out)
    return PyBytes_FromStringAndSize(<char *>out, sizeof(out))


def packet_tag(bytes data not None, bytes key not None) -> bytes:
    """Return the tag of a packet and the first bytes of its trailer."""
    cdef uint64_t out[2]
    cdef Key parsed
    parse_bytes(&parsed, key)
    siphash_tag(<const uint8_t *>data, len(data), &parsed.hashing, out)
    return PyBytes_FromStringAndSize(<char *>out, sizeof(out))


def packet_tags(bytes data not None, bytes other not None, bytes key not None) -> tuple[bytes, bytes]:
    """Return packet_tag() of both packets, computed at the same time."""
    cdef uint64_t out[2]
    cdef uint64_t other_out[2]
    cdef Key parsed
    parse_bytes(&parsed, key)
    siphash_tag_two(
        <const uint8_t *>data, len(data), <const uint8_t *>other, len(other), &parsed.hashing, out, other_out
    )
    return (
        PyBytes_FromStringAndSize(<char *>out, sizeof(out)),
        PyBytes_FromStringAndSize(<char *>other_out, sizeof(other_out)),
    )


cdef int check_key(bytes data) except -1:
    if len(data) != KEY_SIZE:
        raise LocalProtocolError(f"an authentication key must have {KEY_SIZE} bytes, not {len(data)}")
    return 0


cdef int parse_bytes(Key *key, bytes data) except -1:
    memset(key, 0, sizeof(Key))
    check_key(data)
    siphash_derive(&key.hashing, load_u64(<const uint8_t *>data), load_u64(<const uint8_t *>data + 8))
    return 0


cdef int parse_key(Key *key, source) except -1:
    parse_bytes(key, source.key)
    if not 1 <= source.key_id <= UINT32_MAX:
        raise LocalProtocolError(f"the key id {source.key_id} is outside 1 to 2**32 - 1")
    key.key_id = source.key_id
    return 0


cdef void begin_trailer(uint8_t *trailer, const Key *key) noexcept nogil:
    """Write a trailer without its tag, which stays zero."""
    memset(trailer, 0, TRAILER_SIZE)
    store_u16(trailer + TRAILER_MAGIC_AT, TRAILER_MAGIC)
    trailer[TRAILER_VERSION_AT] = TRAILER_VERSION
    store_u32(trailer + TRAILER_KEY_ID_AT, key.key_id)


cdef void write_trailer(uint8_t *packet, uint32_t size, const Key *key) noexcept nogil:
    cdef uint64_t tag[2]
    begin_trailer(packet + size, key)
    if key.key_id:
        siphash_tag(packet, size + TRAILER_TAG_AT, &key.hashing, tag)
        memcpy(packet + size + TRAILER_TAG_AT, tag, sizeof(tag))


cdef void write_two_trailers(
    uint8_t *packet, uint32_t size, uint8_t *other, uint32_t other_size, const Key *key
) noexcept nogil:
    cdef uint64_t tag[2]
    cdef uint64_t other_tag[2]
    begin_trailer(packet + size, key)
    begin_trailer(other + other_size, key)
    if key.key_id:
        siphash_tag_two(
            packet, size + TRAILER_TAG_AT, other, other_size + TRAILER_TAG_AT, &key.hashing, tag, other_tag
        )
        memcpy(packet + size + TRAILER_TAG_AT, tag, sizeof(tag))
        memcpy(other + other_size + TRAILER_TAG_AT, other_tag, sizeof(other_tag))


def trailer_under(packet not None, key not None) -> bytes:
    """Return the trailer for a packet, created with this AuthenticationKey."""
    cdef bytes data = bytes(packet) + bytes(TRAILER_SIZE)
    cdef uint32_t size = <uint32_t>(len(data) - TRAILER_SIZE)
    cdef Key parsed
    parse_key(&parsed, key)
    write_trailer(<uint8_t *>PyBytes_AS_STRING(data), size, &parsed)
    return data[size:]


cdef inline bint has_trailer(const uint8_t *data, uint32_t size) noexcept nogil:
    """True if the datagram is, by its size, a packet with a trailer of this version."""
    cdef const uint8_t *trailer
    if size < PACKET_HEADER_SIZE + TRAILER_SIZE or load_u32(data + PACKET_SIZE_AT) != size - TRAILER_SIZE:
        return False
    trailer = data + size - TRAILER_SIZE
    return load_u16(trailer + TRAILER_MAGIC_AT) == TRAILER_MAGIC and trailer[TRAILER_VERSION_AT] == TRAILER_VERSION


cdef inline bint look_ahead(Lookahead *ahead, const Key *key) noexcept nogil:
    """True if the following datagram has a trailer of this key, so that its tag is computed with the current one."""
    ahead.key = NULL
    if ahead.following is NULL or not has_trailer(ahead.following, ahead.following_size):
        return False
    if load_u32(ahead.following + ahead.following_size - TRAILER_SIZE + TRAILER_KEY_ID_AT) != key.key_id:
        return False
    ahead.key, ahead.data = key, ahead.following
    return True


cdef void strip_trailers(DatagramBatch batch) noexcept nogil:
    cdef Py_ssize_t index
    for index in range(batch.count):
        if has_trailer(batch.data + index * batch.stride, batch.sizes[index]):
            batch.sizes[index] -= TRAILER_SIZE


def strip_trailer(data not None) -> memoryview:
    """Return the packet without its trailer, if any, which is not checked."""
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
    """Immutable keys and publishers of some scopes, so that one thread can use a table while another builds the next
    one.
    """

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
            raise LocalProtocolError(f"duplicate authentication key id {key.key_id}")
        self._keys[at] = key[0]
        return 0

    cdef int add_publisher(self, uint64_t publisher_id, uint32_t scope, uint32_t first, uint32_t last) except -1:
        cdef uint64_t at = mixed(publisher_id) & self._vouched_mask
        if publisher_id == 0:
            raise LocalProtocolError("a publisher id must not be 0")
        while self._vouched[at].publisher_id and self._vouched[at].publisher_id != publisher_id:
            at = (at + 1) & self._vouched_mask
        if self._vouched[at].publisher_id:
            raise LocalProtocolError(f"publisher {publisher_id} is listed twice")
        self._vouched[at] = Vouched(publisher_id, scope, first, last)
        return 0

    cdef const Key *find_key(self, uint32_t key_id) noexcept nogil:
        """Return the key, or NULL."""
        cdef uint64_t at = mixed(key_id) & self._key_mask
        while self._keys[at].key_id:
            if self._keys[at].key_id == key_id:
                return &self._keys[at]
            at = (at + 1) & self._key_mask
        return NULL

    cdef const Vouched *find_publisher(self, uint64_t publisher_id) noexcept nogil:
        """Return the accepted epochs of the publisher, or NULL."""
        cdef uint64_t at = mixed(publisher_id) & self._vouched_mask
        while self._vouched[at].publisher_id:
            if self._vouched[at].publisher_id == publisher_id:
                return &self._vouched[at]
            at = (at + 1) & self._vouched_mask
        return NULL


cdef class LeaseFlag:
    """True after the lease of keys has ended. Several authenticators share a flag; any thread may set it."""

    def __cinit__(self, *, bint has_ended = True):
        self.has_ended = has_ended


cdef class Authenticator:
    """Creates and checks trailers. A datagram is authentic if its tag is correct with a key of its publisher's scope
    and its epoch is accepted. After the `lease` has ended, authentic datagrams are refused as well, because a revoked
    client may have the keys.

    A peer is an address that the node knows from a control connection. Datagrams from there are authentic under the
    peer's own keys alone, whatever publisher and epoch they name.

    use() and trust() may be called in any thread; all other methods in the receiving thread.
    """

    def __cinit__(self, scopes = (), *, trusted = {}, LeaseFlag lease = None):
        self._table = AuthenticationTable(scopes)
        self._lease = lease
        self._peer_places = {}
        self.trust(trusted)
        self.update()

    def __dealloc__(self):
        PyMem_Free(self._peers)

    def use(self, scopes not None) -> None:
        """Replace all keys and publishers, from the next batch on."""
        self._next_table = AuthenticationTable(scopes)

    def trust(self, peers not None, *, bint requests_only = False, bint is_open = False) -> None:
        """Replace the peers: addresses and their keys, the first of which authenticates datagrams to the peer. Datagrams
        from a peer without keys, or through shared memory, need no trailer. With `requests_only`, peers may only send
        repair requests: a filter module accepts requests from its applications, but no data. With `is_open`, datagrams
        from other addresses need no trailer."""
        if max((len(keys) for keys in peers.values()), default=0) > PEER_KEYS_MAX:
            raise LocalProtocolError(f"a peer has more than {PEER_KEYS_MAX} keys")
        self._next_peers = (dict(peers), requests_only, is_open)

    def trailer(self, packet not None, destination = None) -> bytes:
        """Return the trailer for a packet, with the peer's key if it goes to a peer, and else with the active key of its
        publisher's scope. Empty for a peer without keys, and if the others need no trailers either."""
        cdef bytes data = bytes(packet) + bytes(TRAILER_SIZE)
        cdef uint32_t size = <uint32_t>(len(data) - TRAILER_SIZE)
        cdef const Vouched *vouched = NULL
        cdef const Peer *peer
        cdef Key key
        if size < PACKET_HEADER_SIZE:
            raise LocalProtocolError(f"a packet cannot have {size} bytes")
        self.update()
        memset(&key, 0, sizeof(Key))
        peer = self.find_peer(destination)
        if peer is not NULL and peer.key_count:
            key = peer.keys[0]
        elif self._is_open:
            return b""
        else:
            vouched = self._table.find_publisher(load_u64(<const uint8_t *>data + PACKET_PUBLISHER_ID_AT))
        if vouched is not NULL:
            key = self._table._active[vouched.scope]
        write_trailer(<uint8_t *>PyBytes_AS_STRING(data), size, &key)
        return data[size:]

    def check(self, data not None, source) -> memoryview | None:
        """Return the packet of a datagram without its trailer; None if it is not authentic, which is counted."""
        cdef const uint8_t[::1] content = memoryview(data).cast("B")
        self.update()
        cdef const uint8_t *start = &content[0] if content.shape[0] else NULL
        cdef const Peer *peer = self.find_peer(source)
        if peer is not NULL and not self.is_for_peers(start, content.shape[0]):
            peer = NULL
        if self._is_open if peer is NULL else peer.key_count == 0:
            return strip_trailer(data)
        if content.shape[0] == 0 or content.shape[0] > UINT32_MAX:
            self.unauthenticated += 1
            return None
        if peer is not NULL:
            if not self.is_of_peer(start, <uint32_t>content.shape[0], peer, NULL):
                return None
        elif not self.is_authentic(start, <uint32_t>content.shape[0], NULL):
            return None
        return memoryview(data)[: content.shape[0] - TRAILER_SIZE]

    def admit_batch(self, DatagramBatch batch not None) -> None:
        """Remove unauthentic datagrams from the batch, and the trailers of the others."""
        self.admit(batch)

    cdef int update(self) except -1:
        """Apply changes from other threads."""
        if self._next_table is not None:
            self._table, self._next_table = self._next_table, None
        if self._next_peers is not None:
            (peers, self._requests_only, self._is_open), self._next_peers = self._next_peers, None
            self.set_peers(peers)
        return 0

    cdef int set_peers(self, dict peers) except -1:
        cdef Peer *made = <Peer *>PyMem_Calloc(max(1, len(peers)), sizeof(Peer))
        cdef Py_ssize_t place
        if made is NULL:
            raise MemoryError
        PyMem_Free(self._peers)
        self._peers, self._peer_count, self._peer_places = made, 0, {}
        for source, address in sorted((source_key(address), address) for address in peers):
            place = self._peer_count
            made[place].source = source
            for key in peers[address]:
                parse_key(&made[place].keys[made[place].key_count], key)
                made[place].key_count += 1
            self._peer_places[address] = place
            self._peer_count += 1
        return 0

    cdef const Peer *find_peer(self, address):
        """The peer at an address, or NULL."""
        place = self._peer_places.get(address)
        if place is None:
            return NULL
        return &self._peers[<Py_ssize_t>place]

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
        cdef const Peer *peer
        cdef uint8_t *data
        cdef Lookahead ahead
        ahead.key, ahead.data = NULL, NULL
        for index in range(batch.count):
            data = batch.data + index * batch.stride
            ahead.following = data + batch.stride if index + 1 < batch.count else NULL
            ahead.following_size = batch.sizes[index + 1] if index + 1 < batch.count else 0
            peer = NULL
            if self._peer_count and self.is_for_peers(data, batch.sizes[index]):
                peer = self.find_peer_of(batch, index)
            if self._is_open if peer is NULL else (peer.key_count == 0 or batch.is_from_ring):
                if has_trailer(data, batch.sizes[index]):
                    batch.sizes[index] -= TRAILER_SIZE
            elif (
                self.is_authentic(data, batch.sizes[index], &ahead)
                if peer is NULL
                else self.is_of_peer(data, batch.sizes[index], peer, &ahead)
            ):
                batch.sizes[index] -= TRAILER_SIZE
            else:
                continue
            if kept < index:
                batch.move(kept, index)
            kept += 1
        batch.count = kept

    cdef bint is_for_peers(self, const uint8_t *data, Py_ssize_t size) noexcept nogil:
        """True if peers may send a datagram of this kind."""
        if not self._requests_only:
            return True
        return size >= PACKET_HEADER_SIZE and data[PACKET_KIND_AT] == KIND_NACK

    cdef const Peer *find_peer_of(self, DatagramBatch batch, Py_ssize_t index) noexcept nogil:
        """The peer from whose address a datagram came, or NULL."""
        cdef uint64_t source = batch.sources[index]
        cdef Py_ssize_t low = 0, high = self._peer_count, middle
        if source & NAMED:
            with gil:
                return self.find_peer(batch.source(index))
        while low < high:
            middle = (low + high) // 2
            if self._peers[middle].source < source:
                low = middle + 1
            else:
                high = middle
        if low < self._peer_count and self._peers[low].source == source:
            return &self._peers[low]
        return NULL

    cdef bint is_of_peer(
        self, const uint8_t *data, uint32_t size, const Peer *peer, Lookahead *ahead
    ) noexcept nogil:
        """Whether the tag is right under a key of the peer."""
        cdef uint32_t key_id, index
        if not has_trailer(data, size):
            self.unauthenticated += 1
            return False
        key_id = load_u32(data + size - TRAILER_SIZE + TRAILER_KEY_ID_AT)
        for index in range(peer.key_count):
            if peer.keys[index].key_id == key_id:
                return self.has_right_tag(data, size, &peer.keys[index], ahead)
        self.unknown_key += 1
        return False

    cdef bint has_right_tag(self, const uint8_t *data, uint32_t size, const Key *key, Lookahead *ahead) noexcept nogil:
        cdef const uint8_t *trailer = data + size - TRAILER_SIZE
        cdef uint64_t tag[2]
        if ahead is not NULL and ahead.key is key and ahead.data is data:
            tag[0], tag[1] = ahead.tag[0], ahead.tag[1]
        elif ahead is not NULL and look_ahead(ahead, key):
            siphash_tag_two(
                data, size - TRAILER_SIZE + TRAILER_TAG_AT,
                ahead.data, ahead.following_size - TRAILER_SIZE + TRAILER_TAG_AT,
                &key.hashing, tag, ahead.tag,
            )
        else:
            siphash_tag(data, size - TRAILER_SIZE + TRAILER_TAG_AT, &key.hashing, tag)
        # compare all bits: the time must not reveal the number of matching bits
        if (tag[0] ^ load_u64(trailer + TRAILER_TAG_AT)) | (tag[1] ^ load_u64(trailer + TRAILER_TAG_AT + 8)):
            self.forged += 1
            return False
        return True

    cdef bint is_authentic(self, const uint8_t *data, uint32_t size, Lookahead *ahead) noexcept nogil:
        cdef const uint8_t *trailer = data + size - TRAILER_SIZE
        cdef const Vouched *vouched
        cdef const Key *key
        cdef uint32_t epoch
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
        if not self.has_right_tag(data, size, key, ahead):
            return False
        if self._lease is not None and self._lease.has_ended:
            self.lease_ended += 1
            return False
        return True


def source_key(address) -> int:
    """Return the number that a batch uses for an IPv4 address and port; 0 for any other address."""
    try:
        host = int.from_bytes(socket.inet_pton(socket.AF_INET, address[0]), "big")
    except (OSError, ValueError):
        return 0
    return host << 16 | address[1]
