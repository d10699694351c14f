"""Blocks as frames of a link; docs/protocol/tree.md draws them."""

from typing_extensions import Buffer

BLOCK_LENGTH_AT: int
BLOCK_KIND_AT: int
BLOCK_LEG_AT: int
BLOCK_HEADER_SIZE: int
BLOCK_SIZE_MAX: int
"""Bytes of a block, its header included."""

KIND_PACKETS: int
"""Packets of the tree's streams."""
KIND_PUBLISHED: int
"""Packets of a publisher."""
KIND_CONTROL: int
"""A frame whose first byte is not below this is a control message."""

def encode_block(packets: Buffer, *, leg: int = 0, kind: int = ...) -> bytes:
    """A frame; several if the packets do not fit one."""

def split_packets(packets: Buffer) -> list[bytes]:
    """Each packet by itself; RemoteProtocolError if they are none."""
