"""A digest of each message's content, for comparing the streams of two publishers.

The input words are the sequence number, model, topic and content of a message, in units of 8 bytes (the last one padded
with zeros). The receive time is left out, because every adapter has its own. Word by word:

    digest = (digest xor word) * MULTIPLIER, then digest xor (digest >> 29)

The result is truncated to 48 bits, so that the sum of 32,768 digests fits into 63 bits.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy

from penstock.capture.core._rows cimport OriginRow
from penstock.wire._codec cimport MessageView

from penstock.base.errors import LocalProtocolError

cdef enum:
    SHIFT = 29
    SHIFT_LAST = 32
    KEPT_BITS = 48

cdef uint64_t MULTIPLIER = 0x9E3779B97F4A7C15
cdef uint32_t NOWHERE = 0xFFFFFFFF


def digest_rows(
    const uint8_t[::1] topic_data not None,
    const uint8_t[::1] payloads not None,
    const MessageView[::1] rows not None,
    const OriginRow[::1] origins not None,
    const uint32_t[::1] left_out not None,
):
    """Return the digest of each message, as i8. `left_out` has, by model id, the offset of 8 bytes to ignore, or ~0."""
    cdef Py_ssize_t index
    cdef const MessageView *row
    cdef uint32_t skip
    cdef uint64_t digest
    made = numpy.empty(rows.shape[0], numpy.int64)
    cdef long long[::1] digests = made
    if origins.shape[0] != rows.shape[0]:
        raise LocalProtocolError(f"{origins.shape[0]} origins for {rows.shape[0]} messages")
    with nogil:
        for index in range(rows.shape[0]):
            row = &rows[index]
            if (
                <uint64_t>row.topic_offset + row.topic_size > <uint64_t>topic_data.shape[0]
                or <uint64_t>row.payload_offset + row.payload_size > <uint64_t>payloads.shape[0]
            ):
                with gil:
                    raise LocalProtocolError(f"message {index} is outside its buffers")
            skip = left_out[row.model_id] if row.model_id < left_out.shape[0] else NOWHERE
            digest = mixed(mixed(0, origins[index].seq), row.model_id)
            if row.topic_size:
                digest = absorbed(digest, &topic_data[row.topic_offset], row.topic_size, NOWHERE)
            if row.payload_size:
                digest = absorbed(digest, &payloads[row.payload_offset], row.payload_size, skip)
            digests[index] = (digest ^ digest >> SHIFT_LAST) & ((<uint64_t>1 << KEPT_BITS) - 1)
    return made


cdef inline uint64_t mixed(uint64_t digest, uint64_t word) noexcept nogil:
    digest = (digest ^ word) * MULTIPLIER
    return digest ^ digest >> SHIFT


cdef inline uint64_t absorbed(uint64_t digest, const uint8_t *data, uint32_t size, uint32_t skip) noexcept nogil:
    cdef uint32_t at = 0
    cdef uint64_t word
    while size - at >= 8:
        memcpy(&word, data + at, 8)
        digest = mixed(digest, 0 if at == skip else word)
        at += 8
    if at < size:
        word = 0
        memcpy(&word, data + at, size - at)
        digest = mixed(digest, word)
    return digest
