"""The backlog of a source stream: messages that wait for their conversion."""

from collections import deque

from penstock.convert import SourceBatch


class SourceBacklog:
    """Messages without a gap. After a loss, or when the oldest are dropped at the limit, the backlog begins after
    them."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._messages: deque[tuple[int, bytes, int]] = deque()
        self.size = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def first(self) -> int | None:
        return self._messages[0][0] if self._messages else None

    def add(self, batch: SourceBatch) -> None:
        """Append copies of the messages."""
        for index, (sequence, data) in enumerate(batch):
            if not self._messages or sequence > self._messages[-1][0]:
                self._messages.append((sequence, data, batch.receive_ns(index)))
                self.size += len(data)

    def shrink(self) -> tuple[int, int] | None:
        """Drop the oldest messages above the limits. Return the first and the last dropped one, if any."""
        gone: list[int] = []
        while len(self._messages) > self._messages_max or self.size > self._bytes_max:
            gone.append(self._drop_oldest())
        return (gone[0], gone[-1]) if gone else None

    def clear(self) -> None:
        self._messages.clear()
        self.size = 0

    def drop_below(self, sequence: int) -> None:
        while self._messages and self._messages[0][0] < sequence:
            self._drop_oldest()

    def take(self, *, below: int | None = None, count_max: int | None = None) -> SourceBatch | None:
        """The oldest messages, as one batch."""
        taken: list[bytes] = []
        first, receive_ns = 0, 0
        while self._messages and len(taken) != count_max and (below is None or self._messages[0][0] < below):
            sequence, data, received_ns = self._messages.popleft()
            if not taken:
                first, receive_ns = sequence, received_ns
            self.size -= len(data)
            taken.append(data)
        return SourceBatch.from_messages(taken, first, receive_ns) if taken else None

    def _drop_oldest(self) -> int:
        sequence, data, _ = self._messages.popleft()
        self.size -= len(data)
        return sequence
