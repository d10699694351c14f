"""The packet format's vocabulary; docs/reference/protocol/packet.md says what each name means on the wire."""

from enum import IntEnum, IntFlag

from penstock.wire import _codec


class Kind(IntEnum):
    DATA = _codec.KIND_DATA
    NACK = _codec.KIND_NACK
    GONE = _codec.KIND_GONE


class PacketFlag(IntFlag):
    KEEP_ALIVE = _codec.PACKET_KEEP_ALIVE
    REPAIR = _codec.PACKET_REPAIR
    REPLAY = _codec.PACKET_REPLAY
    GOODBYE = _codec.PACKET_GOODBYE


class MessageFlag(IntFlag):
    CONTINUATION = _codec.MESSAGE_CONTINUATION
    MORE = _codec.MESSAGE_MORE
    SEALED = _codec.MESSAGE_SEALED
    DIRECT = _codec.MESSAGE_DIRECT


class OriginFlag(IntFlag):
    SYNCHRONISED = _codec.ORIGIN_SYNCHRONISED
    DISCONTINUITY = _codec.ORIGIN_DISCONTINUITY
    IMAGE = _codec.ORIGIN_IMAGE


class Extension(IntEnum):
    ORIGIN = _codec.EXTENSION_ORIGIN
    HOPS = _codec.EXTENSION_HOPS
    SEAL = _codec.EXTENSION_SEAL
    INTEREST_MASK = _codec.EXTENSION_INTEREST_MASK
    DESTINATION = _codec.EXTENSION_DESTINATION
    TAGS = _codec.EXTENSION_TAGS
