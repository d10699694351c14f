"""Encoding and decoding of blocks for Python; compiled code uses _frame.pxd directly."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

import numpy

from penstock.wire._codec cimport PACKET_GROUP_AT, load_u32

from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError, PacketError


cdef bint are_packets(const uint8_t *data, uint64_t size) noexcept nogil:
    cdef uint64_t at = 0
    cdef uint32_t packet_size
    while at < size:
        packet_size = packet_size_at(data + at, size - at)
        if packet_size == 0:
            return False
        at += packet_size
    return True


cdef int check_packets(const uint8_t[::1] packets) except -1:
    if packets.shape[0] and not are_packets(&packets[0], packets.shape[0]):
        raise PacketError("these bytes are not whole packets, one after another", cause=Cause.LENGTH)
    return 0


def encode_block(const uint8_t[::1] packets not None, *, uint32_t leg = 0, uint8_t kind = KIND_PACKETS) -> bytes:
    """Encode the packets as one or more frames. No packets give no frames, but for a publisher's block with a leg,
    which asks for an acknowledgement."""
    cdef uint64_t at = 0, start = 0, blocks = 0, size = packets.shape[0]
    cdef uint32_t packet_size
    cdef uint8_t *out
    check_packets(packets)
    if kind != KIND_PACKETS and kind != KIND_PUBLISHED:
        raise LocalProtocolError(f"blocks of kind {kind} are not known")
    while at < size:
        packet_size = packet_size_at(&packets[at], size - at)
        if blocks == 0 or at - start + packet_size > BLOCK_SIZE_MAX - BLOCK_HEADER_SIZE:
            start = at
            blocks += 1
        at += packet_size
    if size == 0 and kind == KIND_PUBLISHED and leg:
        blocks = 1
    cdef bytes frames = PyBytes_FromStringAndSize(NULL, size + blocks * BLOCK_HEADER_SIZE)
    out = <uint8_t *>PyBytes_AS_STRING(frames)
    at = start = 0
    while at < size:
        packet_size = packet_size_at(&packets[at], size - at)
        if at - start + packet_size > BLOCK_SIZE_MAX - BLOCK_HEADER_SIZE:
            out = put_block(out, kind, leg, &packets[start], at - start)
            start = at
        at += packet_size
    if size:
        put_block(out, kind, leg, &packets[start], size - start)
    elif blocks:
        write_block_header(out, kind, leg, 0)
    return frames


cdef uint8_t *put_block(uint8_t *out, uint8_t kind, uint32_t leg, const uint8_t *packets, uint64_t size) noexcept nogil:
    write_block_header(out, kind, leg, <uint32_t>size)
    memcpy(out + BLOCK_HEADER_SIZE, packets, size)
    return out + BLOCK_HEADER_SIZE + size


def split_packets(const uint8_t[::1] packets not None) -> list:
    """Split into single packets. PacketError if these are not whole packets."""
    cdef uint64_t at = 0, size = packets.shape[0]
    cdef uint32_t packet_size
    found = []
    check_packets(packets)
    while at < size:
        packet_size = packet_size_at(&packets[at], size - at)
        found.append(PyBytes_FromStringAndSize(<const char *>&packets[at], packet_size))
        at += packet_size
    return found


def count_packets(const uint8_t[::1] packets not None) -> int:
    """Return the number of packets. PacketError if these are not whole packets."""
    cdef uint64_t at = 0, found = 0, size = packets.shape[0]
    check_packets(packets)
    while at < size:
        at += packet_size_at(&packets[at], size - at)
        found += 1
    return found


def packet_rows(const uint8_t[::1] packets not None) -> tuple:
    """Return the offset, size and group of each packet, as arrays. PacketError if these are not whole packets."""
    cdef uint64_t at = 0, size = packets.shape[0]
    cdef Py_ssize_t row, count = count_packets(packets)
    cdef uint32_t[:, ::1] rows
    found = numpy.empty((3, count), numpy.uint32)
    rows = found
    if size > UINT32_MAX:
        raise LocalProtocolError(f"{size} bytes of packets are too many at a time")
    for row in range(count):
        rows[0, row] = <uint32_t>at
        rows[1, row] = packet_size_at(&packets[at], size - at)
        rows[2, row] = load_u32(&packets[at] + PACKET_GROUP_AT)
        at += rows[1, row]
    return found[0], found[1], found[2]
