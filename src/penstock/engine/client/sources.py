"""Where events and records come from: a reader in this process, or one in an offload process."""

from typing import Literal, Protocol, TypeAlias

import msgspec

from penstock.engine.client._store import RecordState
from penstock.engine.client.filters import NotificationFilter
from penstock.middleware.core.events import SessionEvent
from penstock.model import MessageModel

Note: TypeAlias = Literal["overrun", "detached", "resumed", "restarted"]
"""What happened besides: the ring overran us; the node is gone; it is back, and goes on where it was; it is another run
of the node, whose numbers begin anew."""


class Taken(msgspec.Struct, frozen=True, array_like=True):
    data: bytes = b""
    """Whole events, checked, of items that were defined before; none twice."""

    notes: list[Note] = []
    """What happened before them."""


class Counted(msgspec.Struct, frozen=True):
    events: int = 0
    duplicates: int = 0
    """Events that had come before, and were left out."""
    undefined: int = 0
    """Events of items that the node never defined, and were left out."""
    filtered: int = 0
    """Records that do not meet the condition."""
    overruns: int = 0
    detachments: int = 0


class EventSource(Protocol):
    """Of events."""

    def take(self, timeout: float) -> Taken: ...

    def model(self, model_id: int, version: int) -> MessageModel | None: ...

    def counted(self) -> Counted: ...

    def renew(self, token: str) -> None: ...

    def change_rate(self, per_second: float) -> float: ...

    def close(self) -> None: ...


class RecordsCounted(msgspec.Struct, frozen=True):
    topics: int
    reads: int
    """Records given to the application."""
    notices: int
    """Writes that the node told of."""
    withheld: int
    """Changes that no filter let pass."""
    unavailable: int
    """Times that a record could not be read, because somebody was writing it all the time."""
    overruns: int
    """Times that notices were lost and every record was looked at instead."""
    detachments: int
    """Times that the node was lost."""


class RecordSource(Protocol):
    """Of records."""

    def topics(self) -> list[str]: ...

    def read(self, topic: str, timeout: float | None, *, only_updated: bool) -> RecordState | None:
        """The newest record; None if there is none, or with `only_updated` none since the last read, in time."""

    def is_updated(self, topic: str) -> bool: ...

    def delta(self, topic: str) -> tuple[str, ...]: ...

    def watch(self, rule: NotificationFilter) -> int: ...

    def change_watch(self, number: int, rule: NotificationFilter) -> None: ...

    def end_watch(self, number: int) -> None: ...

    def sessions(self) -> list[SessionEvent]: ...

    def take_changes(self, number: int, count_max: int, timeout: float) -> list[tuple[str, RecordState]]: ...

    def models(self) -> list[MessageModel]: ...

    def is_live(self) -> bool: ...

    def counted(self) -> RecordsCounted: ...

    def renew(self, token: str) -> None: ...

    def close(self) -> None: ...
