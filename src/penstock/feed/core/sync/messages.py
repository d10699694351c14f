"""What the adapters of a feed say to each other, in control messages (docs/reference/protocol/feed-sync.md).

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
"""Bytes of the digests of a conversion state's units."""

CHUNK_SIZE_MAX = 1024 * 1024
ANNOUNCEMENT_SIZE_MAX = 16 * 1024

U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[int, msgspec.Meta(ge=0)]
Index = Annotated[int, msgspec.Meta(ge=0, lt=ADAPTERS_MAX)]
Score = Annotated[int, msgspec.Meta(ge=0, le=1_000)]


class AdapterState(msgspec.Struct, tag="adapter-state", frozen=True):
    """How an adapter is and what it knows."""

    index: Index
    term: U32
    """The highest it has heard of; 0 for none."""

    is_active: bool
    """Whether it is the active adapter of that term."""

    is_online: bool
    is_synchronised: bool
    """Whether all of its source streams are synchronised with that term."""

    hears_active: bool
    """Whether it is in touch with the active adapter of that term."""

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
    """Where the active adapter's conversion of a source stream is, or was at a checkpoint."""

    term: U32
    stream_id: U32
    session: Text
    next_source_sequence: Sequence
    next_message_sequence: Sequence
    digest: Digest
    plan: Digest = 0
    """Identity of the converter table with its parameters, format, models and functions; 0: not told. Adapters whose
    plans differ make different messages of the same source, so a backup of another plan is never synchronised."""


class ImageRequest(msgspec.Struct, tag="image-request", frozen=True):
    """A backup wants the conversion state, as far as it differs from its own."""

    term: U32
    stream_id: U32
    request: U32
    """Names this request in the answers."""

    at_least: Sequence
    """The image is of this source position or a later one."""

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
    """A piece of it; an empty one ends it."""

    stream_id: U32
    request: U32
    number: U32
    """From 0."""

    data: Annotated[bytes, msgspec.Meta(max_length=CHUNK_SIZE_MAX)]


class ImageRefused(msgspec.Struct, tag="image-refused", frozen=True):
    """There is no image for this request."""

    stream_id: U32
    request: U32
    reason: Text


class TakeOver(msgspec.Struct, tag="take-over", frozen=True):
    """The active adapter of `term` lost source messages below `source_sequence` for good: a backup that is synchronised
    and has them may go on seamlessly."""

    term: U32
    stream_id: U32
    source_sequence: Sequence


SyncMessage: TypeAlias = (
    AdapterState | Announced | StreamState | ImageRequest | ImageBegin | ImageChunk | ImageRefused | TakeOver
)

PROTOCOL: ControlProtocol[SyncMessage] = ControlProtocol("feed-sync", Version(1, 1), SyncMessage)

CONNECTION = ControlConfig(message_size_max=UNIT_DIGESTS_SIZE_MAX + 65_536)
