from penstock.assured.core.router._intake import PublishBatch

class Contents:
    """Where the contents of one transaction's messages are among the bytes that were sent of it. `number` is the link's
    for the transaction, `size` that of these bytes."""

    def __init__(self, number: int) -> None: ...
    @property
    def number(self) -> int: ...
    @property
    def size(self) -> int: ...
    def add(self, batch: PublishBatch) -> None:
        """All bytes of the batch are sent."""

def encode_together(number: int, data: bytes = b"", *, is_forgotten: bool = False) -> bytes: ...
def read_together(frame: bytes) -> tuple[int, bool]:
    """(number, whether it is to be forgotten)."""

def splice(frame: bytes, streamed: dict[tuple[int, int], Contents]) -> tuple[bytes, list[tuple[int, int]]]:
    """A RECORDS frame, with its length, without what the other router holds of it; and the transactions of `streamed`,
    by publisher and number, that are in it."""

def join(frame: bytes, held: dict[int, bytearray]) -> bytes:
    """The RECORDS frame that a SPLICED one stands for; RemoteProtocolError."""
