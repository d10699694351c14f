"""Epochs that grow with every start of a publisher, independent of clocks, and survive crashes.

They are stored in a small file of eight-byte slots, each with an epoch and its CRC32C. A starting publisher

    1. reads the file and takes next_epoch(content),
    2. writes encode_epoch(epoch) at slot_offset(content) and syncs it,
    3. publishes only if the sync has succeeded; otherwise it repeats step 1.

A torn slot fails its checksum and is overwritten. A used epoch is always in the file, so it is never used again.
"""

import struct

from penstock.base.crc32c import crc32c

SLOT = struct.Struct("<II")


def encode_epoch(epoch: int) -> bytes:
    body = epoch.to_bytes(4, "little")
    return SLOT.pack(epoch, crc32c(body))


def next_epoch(content: bytes) -> int:
    """Return one more than the highest epoch in the file."""
    whole = content[: len(content) - len(content) % SLOT.size]
    epochs = [epoch for epoch, crc in SLOT.iter_unpack(whole) if crc == crc32c(epoch.to_bytes(4, "little"))]
    return max(epochs, default=0) + 1


def slot_offset(content: bytes) -> int:
    """Return the offset of the next slot; a torn last slot is overwritten."""
    return len(content) - len(content) % SLOT.size
