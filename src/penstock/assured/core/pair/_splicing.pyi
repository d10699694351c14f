from penstock.assured.core.router._intake import PublishBatch

class Contents:
    """Positions of one transaction's message contents in the bytes that were sent ahead. `number` is the link's
    number of the transaction, `size` the number of these bytes."""

    def __init__(self, number: int) -> None: ...
    @property
    def number(self) -> int: ...
    @property
    def size(self) -> int: ...
    def add(self, batch: PublishBatch) -> None:
        """All bytes of the batch were sent."""

def encode_together(number: int, data: bytes = b"", *, is_forgotten: bool = False) -> bytes: ...
def read_together(frame: bytes) -> tuple[int, bool]:
    """Return (number, True if it must be forgotten)."""

def splice(frame: bytes, streamed: dict[tuple[int, int], Contents]) -> tuple[bytes, list[tuple[int, int]]]:
    """Remove the parts that the other router already has from a RECORDS frame with its length. Return the new frame,
    and the transactions of `streamed` that it contains, by publisher and number."""

def join(frame: bytes, held: dict[int, bytearray]) -> bytes:
    """Restore the RECORDS frame of a SPLICED one. Raises RemoteProtocolError."""
