"""Sources of events and records: a reader in this process, or one in an offload process."""

from typing import Literal, Protocol, TypeAlias

import msgspec

from penstock.engine.client._store import RecordState
from penstock.engine.client.filters import NotificationFilter
from penstock.middleware.core.events import SessionEvent
from penstock.model import MessageModel

Note: TypeAlias = Literal["overrun", "detached", "resumed", "restarted"]
"""Incidents between events: the ring was overrun; the connection to the node was lost; the connection is back, and
events continue; the connection is back after a restart of the node, and event numbers start again."""


class EventBlock(msgspec.Struct, frozen=True, array_like=True):
    data: bytes = b""
    """Complete, checked events without duplicates, each of an item that was defined before."""

    notes: list[Note] = []
    """Incidents before these events."""


class EventCounts(msgspec.Struct, frozen=True):
    events: int = 0
    duplicates: int = 0
    """Duplicate events, which were dropped."""
    undefined: int = 0
    """Events of items that the node never defined, which were dropped."""
    filtered: int = 0
    """Records that do not meet the condition, which were dropped."""
    overruns: int = 0
    detachments: int = 0


class NodeSource(Protocol):
    """A consumer attached to a node."""

    def renew(self, token: str) -> None: ...

    def close(self) -> None: ...


class EventSource(NodeSource, Protocol):
    """A source of events."""

    def take(self, timeout: float) -> EventBlock: ...

    def model(self, model_id: int, version: int) -> MessageModel | None: ...

    def counted(self) -> EventCounts: ...

    def change_rate(self, per_second: float) -> float: ...


class RecordCounts(msgspec.Struct, frozen=True):
    topics: int
    reads: int
    """Records given to the application."""
    notices: int
    """Notices of the node, one for each record written."""
    withheld: int
    """Changes that the filters dropped."""
    unavailable: int
    """Reads that failed because the record was being written all the time."""
    overruns: int
    """Times that notices were lost, and all records were checked instead."""
    detachments: int
    """Times that the connection to the node was lost."""


class RecordSource(NodeSource, Protocol):
    """A source of records."""

    def topics(self) -> list[str]: ...

    def read(self, topic: str, timeout: float | None, *, only_updated: bool) -> RecordState | None:
        """The newest record. None if there is none within the timeout, or with `only_updated` none since the last
        read."""

    def is_updated(self, topic: str) -> bool: ...

    def delta(self, topic: str) -> tuple[str, ...]: ...

    def watch(self, rule: NotificationFilter) -> int: ...

    def change_watch(self, number: int, rule: NotificationFilter) -> None: ...

    def end_watch(self, number: int) -> None: ...

    def sessions(self) -> list[SessionEvent]: ...

    def take_changes(self, number: int, count_max: int, timeout: float) -> list[tuple[str, RecordState]]: ...

    def models(self) -> list[MessageModel]: ...

    def is_live(self) -> bool: ...

    def counted(self) -> RecordCounts: ...
