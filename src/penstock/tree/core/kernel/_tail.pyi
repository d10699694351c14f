"""Packets one behind the other in memory that others may read after this process, zeros behind the last."""

from typing_extensions import Buffer

class TailMemory:
    """Memory of two halves, which is held until release(). One thread at a time uses it."""

    def __init__(self, memory: Buffer, half_size: int) -> None: ...
    @property
    def half_size(self) -> int: ...
    def release(self) -> None:
        """There is no room in it any more."""

    def has_room(self, size: int) -> bool:
        """In this half."""

    def turn(self) -> None:
        """Go on in the other half, and write over what it has."""

    def write(self, packets: Buffer) -> None:
        """Whole packets, for which there is room."""

    def take_untold(self) -> bytes:
        """The packets that compiled code has put here since the last call; they stay here as well."""
