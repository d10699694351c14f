"""Blocks as frames of a link; docs/reference/protocol/tree.md draws them."""

from collections.abc import Sequence

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

FRAME_LENGTH_SIZE: int
BLOCK_LENGTH_AT: int
BLOCK_KIND_AT: int
BLOCK_LEG_AT: int
BLOCK_HEADER_SIZE: int
BLOCK_SIZE_MAX: int
"""Bytes of a block, its header included."""
FRAME_SIZE_MAX: int
"""Bytes of any other frame, its length included."""

KIND_PACKETS: int
"""Packets of the tree's streams."""
KIND_PUBLISHED: int
"""Packets of a publisher."""
KIND_CONTROL: int
"""A frame whose first byte is not below this is a control message."""

EXTENSION_PUBLISHED: int
STAGE_PUBLISH: int
PUBLISHED_PUBLISHER_AT: int
PUBLISHED_NUMBER_AT: int
PUBLISHED_SIZE: int
HOP_SIZE: int

def encode_block(packets: Buffer, *, leg: int = 0, kind: int = ...) -> bytes:
    """The packets as frames: one, or several if they do not fit one. Without packets there is none."""

def split_packets(packets: Buffer) -> list[bytes]:
    """Each packet by itself; PacketError if these are not whole packets."""

def count_packets(packets: Buffer) -> int:
    """How many there are; PacketError if these are not whole packets."""

def packet_rows(
    packets: Buffer,
) -> tuple[NDArray[numpy.uint32], NDArray[numpy.uint32], NDArray[numpy.uint32]]:
    """Of each packet where it begins, its size and its group, as arrays; PacketError if these are not whole packets."""

def merge_packets(blocks: Sequence[Buffer]) -> bytes:
    """The packets of several blocks of one stream, each in order, as one in order; what several have is taken once."""
