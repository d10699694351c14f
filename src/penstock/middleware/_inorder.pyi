from penstock.wire import DatagramBatch, MessageBatch

SEQUENCE_MAX: int

class StreamCursor:
    publisher_id: int
    source_key: int
    next_sequence: int
    newest_sequence: int
    heard_ns: int
    group: int
    epoch: int
    is_smooth: bool

class InOrder:
    def __init__(self, seed: int) -> None: ...
    def add(self, cursor: StreamCursor) -> None: ...
    def remove(self, cursor: StreamCursor) -> None: ...
    @property
    def packets_taken(self) -> int: ...
    @property
    def messages_taken(self) -> int: ...
    def begin(self, batch: DatagramBatch, now_ns: int) -> MessageBatch | None: ...
    def take(self, batch: DatagramBatch, start: int, now_ns: int) -> MessageBatch | None: ...
