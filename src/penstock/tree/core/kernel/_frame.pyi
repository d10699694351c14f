"""Blocks as frames of a link; docs/reference/protocol/tree.md has drawings."""

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

FRAME_LENGTH_SIZE: int
BLOCK_LENGTH_AT: int
BLOCK_KIND_AT: int
BLOCK_LEG_AT: int
BLOCK_HEADER_SIZE: int
BLOCK_SIZE_MAX: int
"""Maximum size of a block, including its header."""
FRAME_SIZE_MAX: int
"""Maximum size of any other frame, including its length."""

KIND_PACKETS: int
"""Packets of the tree's streams."""
KIND_PUBLISHED: int
"""Packets of a publisher."""
ACKNOWLEDGE: int
"""The leg of a publisher's block that asks the root to acknowledge at once everything up to the end of the block."""
KIND_CONTROL: int
"""A frame whose first byte is not below this value is a control message."""

EXTENSION_PUBLISHED: int
STAGE_PUBLISH: int
PUBLISHED_PUBLISHER_AT: int
PUBLISHED_NUMBER_AT: int
PUBLISHED_SIZE: int
HOP_SIZE: int

def encode_block(packets: Buffer, *, leg: int = 0, kind: int = ...) -> bytes:
    """Encode the packets as one or more frames; no packets give no frames."""

def split_packets(packets: Buffer) -> list[bytes]:
    """Split into single packets. PacketError if these are not whole packets."""

def count_packets(packets: Buffer) -> int:
    """Return the number of packets. PacketError if these are not whole packets."""

def packet_rows(
    packets: Buffer,
) -> tuple[NDArray[numpy.uint32], NDArray[numpy.uint32], NDArray[numpy.uint32]]:
    """Return the offset, size and group of each packet, as arrays. PacketError if these are not whole packets."""
