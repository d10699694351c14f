"""Epochs that grow with every start of a publisher, whatever the clock says and wherever a crash strikes.

They are kept in a small file of eight-byte slots, each an epoch and its CRC32C. A starting publisher

    1. reads the file and takes next_epoch(content),
    2. writes encode_epoch(epoch) at slot_offset(content) and syncs it,
    3. publishes only when the sync has succeeded; else it goes back to 1.

A torn slot fails its checksum and is written over; an epoch that was used is in the file, so it is never used twice.
"""

import struct

from penstock.base.crc32c import crc32c

SLOT = struct.Struct("<II")


def encode_epoch(epoch: int) -> bytes:
    body = epoch.to_bytes(4, "little")
    return SLOT.pack(epoch, crc32c(body))


def next_epoch(content: bytes) -> int:
    """One more than any epoch in the file."""
    whole = content[: len(content) - len(content) % SLOT.size]
    epochs = [epoch for epoch, crc in SLOT.iter_unpack(whole) if crc == crc32c(epoch.to_bytes(4, "little"))]
    return max(epochs, default=0) + 1


def slot_offset(content: bytes) -> int:
    """Where the next slot begins; a torn last one is written over."""
    return len(content) - len(content) % SLOT.size
