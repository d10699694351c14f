"""Contiguous packets in memory that survives this process, followed by zeros."""

from typing_extensions import Buffer

class TailMemory:
    """Memory of two halves, which is held until release(). One thread at a time uses it."""

    def __init__(self, memory: Buffer, half_size: int) -> None: ...
    @property
    def half_size(self) -> int: ...
    def release(self) -> None:
        """Release the memory; there is no room in it any more."""

    def has_room(self, size: int) -> bool:
        """True if this half has room."""

    def turn(self) -> None:
        """Continue in the other half, overwriting it."""

    def write(self, packets: Buffer) -> None:
        """Write whole packets, for which there is room."""

    def take_untold(self) -> bytes:
        """Return the packets that compiled code has put here since the last call; they stay here, too."""
