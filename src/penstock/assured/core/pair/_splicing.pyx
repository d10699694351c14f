"""Transaction contents that the standby already has are omitted from the commit here, and added again there; see
transaction_stream.py. _layout.pxd has the frames."""

from cpython.bytearray cimport PyByteArray_AS_STRING
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from penstock.assured.core.router._containers cimport Bytes, bytes_reserve
from penstock.assured.wire._layout cimport (
    KIND_SPLICED,
    KIND_TOGETHER,
    LENGTH_SIZE,
    PEER_FRAME_SIZE_MAX,
    PIECE_SIZE,
    RECORDS_HEAD_SIZE,
    SPLICED_HEAD_SIZE,
    TOGETHER_FORGOTTEN,
    TOGETHER_HEAD_SIZE,
    Piece,
    SplicedHead,
    TogetherHead,
)
from penstock.assured.core.router._parts cimport MessageParts
from penstock.assured.core.router._records cimport (
    MESSAGE_HEAD_SIZE,
    RECORD_MESSAGE,
    RECORD_TRANSACTION,
    TRANSACTION_HEAD_SIZE,
    MessageHead,
    RecordHead,
    TransactionHead,
    content_at,
)
from penstock.wire._codec cimport store_u32

from penstock.base.errors import RemoteProtocolError

cdef enum:
    CONTENT_SIZE_MIN = 48  # smaller contents are sent again: a piece has almost the same size


cdef struct Place:
    uint64_t number  # of the message
    uint32_t offset
    uint32_t size


cdef class Contents:
    """Positions of one transaction's message contents in the bytes that were sent ahead."""

    cdef readonly uint32_t number
    cdef readonly uint64_t size
    cdef uint64_t highest
    cdef Bytes places  # Place after Place; the messages' numbers rise

    def __cinit__(self, uint32_t number):
        self.number = number

    def __dealloc__(self):
        free(self.places.data)

    def add(self, MessageParts batch not None) -> None:
        cdef uint64_t number = batch.first_number, content
        cdef uint32_t index
        for index in range(<uint32_t>len(batch)):
            content = <uint64_t>batch._topic_sizes[index] + batch._payload_sizes[index]
            if number > self.highest and content >= CONTENT_SIZE_MIN:
                bytes_reserve(&self.places, sizeof(Place))
                (<Place *>(self.places.data + self.places.size))[0] = Place(
                    number, <uint32_t>(self.size + batch._topic_offsets[index]), <uint32_t>content
                )
                self.places.size += sizeof(Place)
            self.highest = max(self.highest, number)
            number += 1
        self.size += batch.view.shape[0]


def encode_together(uint32_t number, bytes data not None = b"", *, bint is_forgotten = False) -> bytes:
    cdef TogetherHead head = TogetherHead(KIND_TOGETHER, TOGETHER_FORGOTTEN if is_forgotten else 0, 0, number)
    cdef uint64_t size = TOGETHER_HEAD_SIZE + len(data)
    cdef bytes frame = PyBytes_FromStringAndSize(NULL, LENGTH_SIZE + size)
    cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(frame)
    store_u32(out, <uint32_t>size)
    memcpy(out + LENGTH_SIZE, &head, TOGETHER_HEAD_SIZE)
    memcpy(out + LENGTH_SIZE + TOGETHER_HEAD_SIZE, PyBytes_AS_STRING(data), len(data))
    return frame


def read_together(bytes frame not None) -> tuple:
    """Return (number, True if it must be forgotten)."""
    cdef TogetherHead head
    if len(frame) < TOGETHER_HEAD_SIZE:
        raise RemoteProtocolError("a frame of a transaction is too short")
    memcpy(&head, PyBytes_AS_STRING(frame), TOGETHER_HEAD_SIZE)
    return head.number, bool(head.flags & TOGETHER_FORGOTTEN)


cdef class Splicing:
    """A frame of this router and its omitted parts."""

    cdef const uint8_t *frame
    cdef uint64_t size
    cdef uint64_t done
    cdef uint64_t left_out
    cdef Bytes pieces

    def __cinit__(self, bytes frame not None):
        self.frame = <const uint8_t *>PyBytes_AS_STRING(frame)
        self.size = len(frame)
        self.done = LENGTH_SIZE

    def __dealloc__(self):
        free(self.pieces.data)

    cdef int put(self, uint64_t at, uint32_t number, uint32_t offset, uint32_t size) except -1:
        """Record that this part of the frame is held under this number."""
        bytes_reserve(&self.pieces, PIECE_SIZE)
        (<Piece *>(self.pieces.data + self.pieces.size))[0] = Piece(<uint32_t>(at - self.done), number, offset, size)
        self.pieces.size += PIECE_SIZE
        self.done = at + size
        self.left_out += size
        return 0

    cdef int leave_out(self, uint64_t at, uint64_t end, Contents contents) except -1:
        """Omit the held contents of a transaction's records. Both are in the order of publishing, so one walk is
        enough."""
        cdef const Place *place = <const Place *>contents.places.data
        cdef const Place *last = <const Place *>(contents.places.data + contents.places.size)
        cdef RecordHead record
        cdef MessageHead head
        while at < end:
            memcpy(&record, self.frame + at, sizeof(RecordHead))
            if record.kind == RECORD_MESSAGE:
                memcpy(&head, self.frame + at, MESSAGE_HEAD_SIZE)
                while place < last and place.number < head.number:
                    place += 1
                if place < last and place.number == head.number and place.size == head.topic_size + head.payload_size:
                    self.put(at + content_at(&head), contents.number, place.offset, place.size)
            at += record.size
        return 0

    cdef bytes taken(self):
        """The SPLICED frame."""
        self.put(self.size, 0, 0, 0)
        cdef SplicedHead head = SplicedHead(KIND_SPLICED, 0, 0, <uint32_t>(self.pieces.size // PIECE_SIZE))
        cdef uint64_t size = SPLICED_HEAD_SIZE + self.pieces.size + self.size - LENGTH_SIZE - self.left_out
        cdef uint64_t at = LENGTH_SIZE
        cdef bytes spliced = PyBytes_FromStringAndSize(NULL, LENGTH_SIZE + size)
        cdef uint8_t *out = <uint8_t *>PyBytes_AS_STRING(spliced)
        cdef const Piece *piece = <const Piece *>self.pieces.data
        store_u32(out, <uint32_t>size)
        memcpy(out + LENGTH_SIZE, &head, SPLICED_HEAD_SIZE)
        out += LENGTH_SIZE + SPLICED_HEAD_SIZE
        memcpy(out, self.pieces.data, self.pieces.size)
        out += self.pieces.size
        for _ in range(head.count):
            memcpy(out, self.frame + at, piece.said)
            out += piece.said
            at += piece.said + piece.size
            piece += 1
        return spliced


def splice(bytes frame not None, dict streamed not None) -> tuple:
    """Remove the parts that the other router already has from a RECORDS frame with its length. Return the new frame,
    and the transactions of `streamed` that it contains, by publisher and number."""
    cdef Splicing splicing = Splicing(frame)
    cdef uint64_t at = LENGTH_SIZE + RECORDS_HEAD_SIZE
    cdef RecordHead record
    cdef TransactionHead head
    ended = []
    while at < splicing.size:
        memcpy(&record, splicing.frame + at, sizeof(RecordHead))
        if record.kind == RECORD_TRANSACTION:
            memcpy(&head, splicing.frame + at, TRANSACTION_HEAD_SIZE)
            key = head.publisher, head.transaction
            contents = streamed.get(key)
            if contents is not None:
                ended.append(key)
                splicing.leave_out(at + TRANSACTION_HEAD_SIZE, at + record.size, contents)
        at += record.size
    return (splicing.taken() if splicing.left_out else frame), ended


def join(bytes frame not None, dict held not None) -> bytes:
    """Restore the RECORDS frame of a SPLICED one. Raises RemoteProtocolError."""
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(frame)
    cdef uint64_t size = len(frame), at, said = 0, total
    cdef SplicedHead head
    cdef Piece piece
    cdef uint32_t index
    cdef bytearray source = None
    cdef uint8_t *out
    if size < SPLICED_HEAD_SIZE:
        raise RemoteProtocolError("a SPLICED frame is too short")
    memcpy(&head, data, SPLICED_HEAD_SIZE)
    at = SPLICED_HEAD_SIZE + <uint64_t>head.count * PIECE_SIZE
    if at > size:
        raise RemoteProtocolError(f"a SPLICED frame is too short for its {head.count} pieces")
    total = size - at
    for index in range(head.count):
        memcpy(&piece, data + SPLICED_HEAD_SIZE + index * PIECE_SIZE, PIECE_SIZE)
        said += piece.said
        total += piece.size
    if said != size - at or total > PEER_FRAME_SIZE_MAX:
        raise RemoteProtocolError(f"a SPLICED frame has {size - at} own bytes, its pieces {said}, and {total} in all")
    cdef bytes joined = PyBytes_FromStringAndSize(NULL, total)
    out = <uint8_t *>PyBytes_AS_STRING(joined)
    for index in range(head.count):
        memcpy(&piece, data + SPLICED_HEAD_SIZE + index * PIECE_SIZE, PIECE_SIZE)
        memcpy(out, data + at, piece.said)
        at += piece.said
        out += piece.said
        if piece.size:
            source = held.get(piece.number)
            if source is None or <uint64_t>piece.offset + piece.size > <uint64_t>len(source):
                raise RemoteProtocolError("a SPLICED frame refers to bytes that this router does not hold")
            memcpy(out, PyByteArray_AS_STRING(source) + piece.offset, piece.size)
            out += piece.size
    return joined
