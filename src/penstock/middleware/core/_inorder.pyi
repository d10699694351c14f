from penstock.middleware.core._streams import StreamEntry, StreamIndex
from penstock.wire import Authenticator, DatagramBatch, MessageBatch

SEQUENCE_MAX: int

class StreamCursor(StreamEntry):
    source_key: int
    next_sequence: int
    newest_sequence: int
    known_from: int
    heard_ns: int
    epoch: int
    is_smooth: bool
    is_replay: bool

class InOrder(StreamIndex):
    def __init__(
        self, seed: int, *, takes_fragments: bool = False, authenticator: Authenticator | None = None
    ) -> None: ...
    @property
    def authenticator(self) -> Authenticator | None: ...
    def add(self, cursor: StreamCursor) -> None: ...  # type: ignore[override]
    @property
    def packets_taken(self) -> int: ...
    @property
    def messages_taken(self) -> int: ...
    def begin(self, batch: DatagramBatch, now_ns: int) -> MessageBatch | None: ...
    def pass_over(self, batch: DatagramBatch, start: int, is_replay: bool) -> int: ...
    def pass_known(self, batch: DatagramBatch, start: int) -> int: ...
    def take(self, batch: DatagramBatch, start: int, now_ns: int) -> MessageBatch | None: ...
