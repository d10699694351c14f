"""The ring in plain Python: the position of each event, and the events that a reader can still read."""

HEADER_SIZE = 16


def space(payload_size: int) -> int:
    return -(-(HEADER_SIZE + payload_size + 4) // 8) * 8


class RingOracle:
    """Stores for every 8 bytes of the ring the event that owns them; the blank header belongs to the next event."""

    def __init__(self, capacity: int, event_size_max: int) -> None:
        self._capacity = capacity
        self._room = space(event_size_max) + HEADER_SIZE
        self.restart()

    def restart(self) -> None:
        self._owners = [0] * (self._capacity // 8)
        self._payloads: dict[int, bytes] = {}
        self._written_at = self._read_at = 0
        self._written = self._read = 1
        self._own(0, HEADER_SIZE, 1)

    def write(self, payload: bytes) -> None:
        self._own(self._written_at, space(len(payload)), self._written)
        self._payloads[self._written] = payload
        self._written_at = self._after(self._written_at, payload)
        self._written += 1
        self._own(self._written_at, HEADER_SIZE, self._written)

    def read(self) -> bytes | type[Exception] | None:
        """The payload, None if there is none, or Exception for an overrun."""
        if self._read == self._written:
            return None
        payload = self._payloads[self._read]
        cells = self._owners[self._read_at // 8 : (self._read_at + space(len(payload))) // 8]
        if set(cells) != {self._read}:
            return Exception
        self._read_at = self._after(self._read_at, payload)
        self._read += 1
        return payload

    def _own(self, at: int, size: int, sequence: int) -> None:
        for cell in range(at // 8, (at + size) // 8):
            self._owners[cell] = sequence

    def _after(self, at: int, payload: bytes) -> int:
        at += space(len(payload))
        return 0 if self._capacity - at < self._room else at
