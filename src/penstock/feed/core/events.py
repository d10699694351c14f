"""Events and instructions of a feed adapter's cores.

    Synchroniser:  SourceMessages, SourceBroken, SessionBegan, SessionOver, TimeOfDay, LaneAdvanced, PeerConnected,
                   PeerDisconnected, PeerMessageReceived, TermPersisted, HealthMeasured, Promote, ReturnToService, Tick
                       ->  PublishConverted, Announce, SendPeer, PersistTerm, RoleChanged, SynchronisationChanged,
                           Paused, ServiceChanged
    FeedAdapter:   SourceDatagram, SourceDatagrams and all of the above
                       ->  all of the above, RequestSource, LineChanged

Instructions are carried out in their order. A PublishConverted must have been carried out before the next event is
handled, because its memory is used again.
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
"""Why a stream does not go on seamlessly."""


# Events


class SourceDatagram(msgspec.Struct, frozen=True):
    """One line of a source stream brought a datagram."""

    stream_id: int
    line: int
    data: bytes
    receive_ns: int


class SourceDatagrams(msgspec.Struct, frozen=True):
    """The lines of a source stream brought many; `batch.socket(n)` is the line of each."""

    stream_id: int
    batch: DatagramBatch


class SourceMessages(msgspec.Struct, frozen=True):
    """The next messages of a source stream, once and in order."""

    stream_id: int
    batch: SourceBatch


class SourceBroken(msgspec.Struct, frozen=True):
    """Source messages are lost for good; the next ones follow behind them."""

    stream_id: int
    first: int
    last: int


class SessionBegan(msgspec.Struct, frozen=True):
    """The source stream begins a session, or was met in the middle of one; its next message is `first`."""

    stream_id: int
    name: str
    first: int
    is_reset: bool = False
    """The source counts anew without having changed its session's name, or its day ended by the calendar."""

    receive_ns: int = 0
    """When its first datagram was received, in nanoseconds since 1970; 0 where that is not known."""

    trading_date: date | None = None
    """Where the feed itself tells it; else the venue's calendar does (feed/core/session_dates.py)."""

    is_continued: bool = False
    """The source's own session goes on; its trading day ended by the calendar."""


class SessionOver(msgspec.Struct, frozen=True):
    """The source signals the end of its session; all its messages were delivered before."""

    stream_id: int


class TimeOfDay(msgspec.Struct, frozen=True):
    """The wall clock, for source streams whose receive times are of that clock; a recording has its own."""

    stream_id: int
    wall_ns: int


class LaneAdvanced(msgspec.Struct, frozen=True):
    """The driver converted and published by itself, as it may while is_flowing(); the converter knows how far."""

    stream_id: int


class PeerConnected(msgspec.Struct, frozen=True):
    """There is a channel to another adapter of the feed; what is sent on it arrives in order."""

    index: int


class PeerDisconnected(msgspec.Struct, frozen=True):
    """The channel is gone, and what was on its way with it."""

    index: int


class PeerMessageReceived(msgspec.Struct, frozen=True):
    index: int
    message: SyncMessage


class TermPersisted(msgspec.Struct, frozen=True):
    """A term asked for by PersistTerm is on the disk."""

    term: int


class HealthMeasured(msgspec.Struct, frozen=True):
    health: Health


class Promote(msgspec.Struct, frozen=True):
    """The operator wants this adapter to be the active one, with a discontinuity if need be."""


class ReturnToService(msgspec.Struct, frozen=True):
    """The operator wants an adapter that went off-line back."""


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
    """Publish these messages: a batch as middleware.PublishBatch takes it."""

    stream_id: int
    converted: Packable


class Announce(msgspec.Struct, frozen=True):
    """Publish this message, which says that the source stream does not go on seamlessly, or that its session ended."""

    stream_id: int
    message: OutgoingMessage


class RequestSource(msgspec.Struct, frozen=True):
    """Ask the source for messages again."""

    stream_id: int
    session: str
    first: int
    count: int


class LineChanged(msgspec.Struct, frozen=True):
    """A line of a source stream fell silent, or is back; said to the operator."""

    stream_id: int
    line: int
    is_silent: bool


class SendPeer(msgspec.Struct, frozen=True):
    index: int
    message: SyncMessage


class PersistTerm(msgspec.Struct, frozen=True):
    """Bring this term to the disk, then tell TermPersisted; only the highest must be kept."""

    term: int


class RoleChanged(msgspec.Struct, frozen=True):
    """This adapter has another role, or the active one has another term."""

    role: Role
    term: int
    why: str


class SynchronisationChanged(msgspec.Struct, frozen=True):
    """Whether this backup's copy of a source stream may be used by subscribers."""

    stream_id: int
    is_synchronised: bool
    why: str


class Paused(msgspec.Struct, frozen=True):
    """This backup lets the active adapter get ahead, and sends nothing of a source stream until then."""

    stream_id: int
    until_ns: int


class ServiceChanged(msgspec.Struct, frozen=True):
    """This adapter took itself off-line, or returned; said to the operator."""

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
