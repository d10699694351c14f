from enum import IntEnum

from typing_extensions import Buffer

class EventKind(IntEnum):
    DEFINE = 1
    REFRESH = 2
    UPDATE = 3
    RECEIPT = 4
    REMOVE = 5
    LIVE = 6
    NOTICE = 7
    WITHDRAW = 8
    SESSION = 9

class TransmissionClass(IntEnum):
    CRITICAL = 1
    ADAPTIVE = 2
    METERED = 3

class EventFlag(IntEnum):
    AFTER_OVERRUN = 1
    REPLAYED = 2
    NONCONFLATABLE = 4
    AS_REFRESH = 8

class ReceiptCause(IntEnum):
    OVERRUN = 1
    SLOW = 2
    UPSTREAM = 3
    SATURATED = 4

EVENT_ITEM_AT: int
EVENT_KIND_AT: int
EVENT_CLASS_AT: int
EVENT_VERSION_AT: int
EVENT_BODY_SIZE_AT: int
EVENT_HEAD_SIZE: int
EVENT_PADDING: int
EVENT_SIZE_MAX: int
RECEIPT_SIZE: int
LIVE_SIZE: int
SESSION_SIZE_MAX: int
ALL_ITEMS: int
NO_SLOT: int

class Event:
    @property
    def item(self) -> int: ...
    @property
    def kind(self) -> int: ...
    @property
    def cls(self) -> int: ...
    @property
    def flags(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def version(self) -> int: ...
    @property
    def started_ns(self) -> int: ...
    @property
    def merged(self) -> int: ...
    @property
    def model_id(self) -> int: ...
    @property
    def model_version(self) -> int: ...
    @property
    def slot(self) -> int: ...
    @property
    def session_id(self) -> int: ...
    @property
    def body(self) -> bytes: ...
    @property
    def topic(self) -> bytes: ...
    @property
    def subscription(self) -> int: ...
    @property
    def session(self) -> bytes: ...
    @property
    def lost(self) -> tuple[int, int, int]: ...

def read_events(data: Buffer) -> list[Event]: ...
def make_event(
    kind: EventKind,
    *,
    item: int,
    body: Buffer = b"",
    cls: int = 0,
    flags: int = 0,
    number: int = 0,
    version: int = 0,
    started_ns: int = 0,
    merged: int = 0,
    model_id: int = 0,
    model_version: int = 0,
    slot: int = 0,
) -> bytes: ...
