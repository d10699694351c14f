"""Events and instructions of a feed adapter's cores.

    Synchroniser:  SourceMessages, SourceBroken, SessionBegan, SessionOver, TimeOfDay, LaneAdvanced, PeerConnected,
                   PeerDisconnected, PeerMessageReceived, TermPersisted, HealthMeasured, Promote, ReturnToService, Tick
                       ->  PublishConverted, Announce, SendPeer, PersistTerm, RoleChanged, SynchronisationChanged,
                           Paused, ServiceChanged
    FeedAdapter:   SourceDatagram, SourceDatagrams and all of the above
                       ->  all of the above, RequestSource, LineChanged

Instructions are carried out in order. A PublishConverted must be carried out before the next event is handled, because
its memory is reused.
"""

from datetime import date
from typing import Literal, TypeAlias

import msgspec

from penstock.base.core import Tick
from penstock.convert import SourceBatch
from penstock.feed.core.sync.health import Health
from penstock.feed.core.sync.messages import SyncMessage
from penstock.middleware.core.batch import Packable
from penstock.middleware.core.events import OutgoingMessage
from penstock.wire import DatagramBatch

Role: TypeAlias = Literal["active", "backup"]
Reason: TypeAlias = Literal["start", "source_gap", "session", "promotion"]
"""The reason of a discontinuity."""


# Events


class SourceDatagram(msgspec.Struct, frozen=True):
    """One line of a source stream received a datagram."""

    stream_id: int
    line: int
    data: bytes
    receive_ns: int


class SourceDatagrams(msgspec.Struct, frozen=True):
    """The lines of a source stream received many datagrams; `batch.socket(n)` is the line of each."""

    stream_id: int
    batch: DatagramBatch


class SourceMessages(msgspec.Struct, frozen=True):
    """The next messages of a source stream, once and in order."""

    stream_id: int
    batch: SourceBatch


class SourceBroken(msgspec.Struct, frozen=True):
    """Source messages are lost; the next ones follow after them."""

    stream_id: int
    first: int
    last: int


class SessionBegan(msgspec.Struct, frozen=True):
    """The source stream begins a session, or was joined during one; its next message is `first`."""

    stream_id: int
    name: str
    first: int
    is_reset: bool = False
    """The source restarted its numbers without a new session name, or its day ended by the calendar."""

    receive_ns: int = 0
    """Receive time of its first datagram, in nanoseconds since 1970; 0: unknown."""

    trading_date: date | None = None
    """The date from the feed itself; otherwise the venue's calendar decides (feed/core/session_dates.py)."""

    is_continued: bool = False
    """The source's own session continues; its trading day ended by the calendar."""


class SessionOver(msgspec.Struct, frozen=True):
    """The source signals the end of its session; all its messages were delivered before."""

    stream_id: int


class TimeOfDay(msgspec.Struct, frozen=True):
    """The wall-clock time, for source streams whose receive times are of that clock; recordings have their own."""

    stream_id: int
    wall_ns: int


class LaneAdvanced(msgspec.Struct, frozen=True):
    """The driver converted and published itself, as allowed while is_flowing(); the converter has the position."""

    stream_id: int


class PeerConnected(msgspec.Struct, frozen=True):
    """A channel to another adapter of the feed is connected; messages on it arrive in order."""

    index: int


class PeerDisconnected(msgspec.Struct, frozen=True):
    """The channel was lost, with the messages on their way."""

    index: int


class PeerMessageReceived(msgspec.Struct, frozen=True):
    index: int
    message: SyncMessage


class TermPersisted(msgspec.Struct, frozen=True):
    """A term of PersistTerm is on the disk."""

    term: int


class HealthMeasured(msgspec.Struct, frozen=True):
    health: Health


class Promote(msgspec.Struct, frozen=True):
    """The operator orders this adapter to become active, if necessary with a discontinuity."""


class ReturnToService(msgspec.Struct, frozen=True):
    """The operator orders an off-line adapter to return."""


SyncEvent: TypeAlias = (
    SourceMessages
    | SourceBroken
    | SessionBegan
    | SessionOver
    | TimeOfDay
    | LaneAdvanced
    | PeerConnected
    | PeerDisconnected
    | PeerMessageReceived
    | TermPersisted
    | HealthMeasured
    | Promote
    | ReturnToService
    | Tick
)
AdapterEvent: TypeAlias = SourceDatagram | SourceDatagrams | SyncEvent


# Instructions


class PublishConverted(msgspec.Struct, frozen=True):
    """Publish these messages, a batch for middleware.PublishBatch."""

    stream_id: int
    converted: Packable


class Announce(msgspec.Struct, frozen=True):
    """Publish this announcement of a discontinuity or of the end of a session."""

    stream_id: int
    message: OutgoingMessage


class RequestSource(msgspec.Struct, frozen=True):
    """Request messages from the source again."""

    stream_id: int
    session: str
    first: int
    count: int


class LineChanged(msgspec.Struct, frozen=True):
    """A line of a source stream became silent, or is back; for the operator."""

    stream_id: int
    line: int
    is_silent: bool


class SendPeer(msgspec.Struct, frozen=True):
    index: int
    message: SyncMessage


class PersistTerm(msgspec.Struct, frozen=True):
    """Write this term to the disk, then pass TermPersisted; only the highest term must be kept."""

    term: int


class RoleChanged(msgspec.Struct, frozen=True):
    """This adapter has another role, or the active one has another term."""

    role: Role
    term: int
    why: str


class SynchronisationChanged(msgspec.Struct, frozen=True):
    """Whether subscribers may use this backup's copy of a source stream."""

    stream_id: int
    is_synchronised: bool
    why: str


class Paused(msgspec.Struct, frozen=True):
    """This backup lets the active adapter get ahead, and sends nothing of a source stream until then."""

    stream_id: int
    until_ns: int


class ServiceChanged(msgspec.Struct, frozen=True):
    """This adapter went off-line by itself, or returned; for the operator."""

    is_online: bool
    why: str


SyncInstruction: TypeAlias = (
    PublishConverted
    | Announce
    | SendPeer
    | PersistTerm
    | RoleChanged
    | SynchronisationChanged
    | Paused
    | ServiceChanged
)
AdapterInstruction: TypeAlias = SyncInstruction | RequestSource | LineChanged
