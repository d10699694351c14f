from penstock.wire import MessageBatch

UNMERGED: int

class SourceCursor:
    stream_id: int
    term: int
    number: int
    source_sequence: int
    message_index: int
    session_tag: int
    has_position: bool
    is_smooth: bool

class BranchCursor:
    number: int
    term: int
    is_continuous: bool
    is_synchronised: bool
    def __init__(self, publisher_id: int, group: int, stream_id: int, source: SourceCursor | None = None) -> None: ...
    @property
    def publisher_id(self) -> int: ...
    @property
    def group(self) -> int: ...
    @property
    def stream_id(self) -> int: ...
    @property
    def source(self) -> SourceCursor | None: ...

class BranchTable:
    def __init__(self, seed: int = 0) -> None: ...
    @property
    def merged_count(self) -> int: ...
    @property
    def duplicate_count(self) -> int: ...
    def add(self, branch: BranchCursor) -> None: ...
    def remove(self, branch: BranchCursor) -> None: ...
    def take(self, batch: MessageBatch, start: int) -> tuple[MessageBatch | None, int]: ...
