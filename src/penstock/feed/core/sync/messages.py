"""The control messages between the adapters of a feed (docs/reference/protocol/feed-sync.md).

every adapter to every other:     AdapterState                    when something changed, and every state_interval_ms
active ──────► backup             Announced, StreamState          at every checkpoint, and every state_interval_ms
backup ──────► active             ImageRequest                    its conversion state differs
active ──────► backup             ImageBegin, ImageChunk…         the units that differ
                                  ImageRefused                    instead
active ──────► backup             TakeOver                        source messages were lost here
"""

from typing import Annotated, TypeAlias

import msgspec

from penstock.net.config import ControlConfig
from penstock.net.core.control import ControlProtocol, Text, Version
from penstock.wire.term import ADAPTERS_MAX

UNIT_DIGESTS_SIZE_MAX = 16 * 1024 * 1024
"""Maximum size of the digests of a conversion state's units."""

CHUNK_SIZE_MAX = 1024 * 1024
ANNOUNCEMENT_SIZE_MAX = 16 * 1024

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[int, msgspec.Meta(ge=0)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=ADAPTERS_MAX)]
Score = Annotated[int, msgspec.Meta(ge=0, le=1_000)]


class AdapterState(msgspec.Struct, tag="adapter-state", frozen=True):
    """The state of an adapter."""

    index: Index
    term: U32
    """The highest known term; 0: none."""

    is_active: bool
    """True if it is the active adapter of that term."""

    is_online: bool
    is_synchronised: bool
    """True if all its source streams are synchronised with that term."""

    hears_active: bool
    """True if it is connected to the active adapter of that term."""

    health: Score


class Announced(msgspec.Struct, tag="announced", frozen=True):
    """The discontinuity that began the lineage of `term`, for one source stream."""

    term: U32
    stream_id: U32
    message_sequence: Sequence
    source_sequence: Sequence
    body: Annotated[bytes, msgspec.Meta(max_length=ANNOUNCEMENT_SIZE_MAX)]
    """The payload of the message on `penstock.discontinuity`."""


class StreamState(msgspec.Struct, tag="stream-state", frozen=True):
    """The position of the active adapter's conversion of a source stream, now or at a checkpoint."""

    term: U32
    stream_id: U32
    session: Text
    next_source_sequence: Sequence
    next_message_sequence: Sequence
    digest: Digest
    plan: Digest = 0
    """Digest of the converter table with its parameters, format, models and functions; 0: unknown. Adapters with
    different plans make different messages of the same source, so a backup with another plan is never synchronised."""


class ImageRequest(msgspec.Struct, tag="image-request", frozen=True):
    """A backup requests the units of the conversion state that differ from its own."""

    term: U32
    stream_id: U32
    request: U32
    """Identifies this request in the answers."""

    at_least: Sequence
    """The minimum source position of the image."""

    known: Annotated[bytes, msgspec.Meta(max_length=UNIT_DIGESTS_SIZE_MAX)] = b""
    """The digests of the backup's own units."""


class ImageBegin(msgspec.Struct, tag="image-begin", frozen=True):
    """The position of the image whose chunks follow."""

    term: U32
    stream_id: U32
    request: U32
    session: Text
    next_source_sequence: Sequence
    next_message_sequence: Sequence
    digest: Digest


class ImageChunk(msgspec.Struct, tag="image-chunk", frozen=True):
    """A piece of the image; an empty one is the last."""

    stream_id: U32
    request: U32
    number: U32
    """Counted from 0."""

    data: Annotated[bytes, msgspec.Meta(max_length=CHUNK_SIZE_MAX)]


class ImageRefused(msgspec.Struct, tag="image-refused", frozen=True):
    """There is no image for this request."""

    stream_id: U32
    request: U32
    reason: Text


class TakeOver(msgspec.Struct, tag="take-over", frozen=True):
    """The active adapter of `term` has lost source messages below `source_sequence`: a synchronised backup that has
    them may continue seamlessly."""

    term: U32
    stream_id: U32
    source_sequence: Sequence


SyncMessage: TypeAlias = (
    AdapterState | Announced | StreamState | ImageRequest | ImageBegin | ImageChunk | ImageRefused | TakeOver
)

PROTOCOL: ControlProtocol[SyncMessage] = ControlProtocol("feed-sync", Version(1, 1), SyncMessage)

CONNECTION = ControlConfig(message_size_max=UNIT_DIGESTS_SIZE_MAX + 65_536)
