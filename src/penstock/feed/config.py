"""Configuration of the feed cores: lines, synchronisation, the stream service."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.limits import PACKET_SIZE_DEFAULT, PACKET_SIZE_MAX
from penstock.net.config import TlsConfig
from penstock.wire import PACKET_SIZE_MIN
from penstock.wire.term import ADAPTERS_MAX

Count = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Size = Annotated[int, msgspec.Meta(ge=1, le=2**40)]
ServiceCount = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65_535)]
Micros = Annotated[int, msgspec.Meta(ge=0, le=10_000_000)]
Millis = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]


class LineConfig(Config, frozen=True):
    """Arbitration of the lines of one source stream."""

    join: Literal["live", "start"] = "live"
    """Begin with the first message that arrives, or request everything since the session's first message."""

    gap_wait_us: Micros = 2_000
    """Time for the other line to deliver a lost message before it is requested."""

    request_retry_ms: Millis = 20
    """Time until a request is repeated; doubles with every attempt."""

    request_attempts_max: Annotated[int, msgspec.Meta(ge=0, le=100)] = 5
    """Maximum number of requests; messages that do not arrive then are lost. 0: there is no request server."""

    window_messages_max: Annotated[int, msgspec.Meta(ge=16, le=2**22)] = 65_536
    """Maximum number of messages that wait for earlier ones. Messages further ahead are dropped and requested later."""

    jump_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 1_000
    """If all messages in this time are too far ahead to wait, those in between are lost and the stream continues
    there."""

    reset_wait_ms: Millis = 5_000
    """If all messages in this time are duplicates, the source has restarted its numbers: a new session."""

    silent_ms: Millis = 3_000
    """Silence, without heartbeats, after which a line is reported."""


class SynchroniserConfig(Config, frozen=True):
    """Synchronisation of the adapters of a feed."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=ADAPTERS_MAX)] = 0
    """Index of this adapter in its feed; unique per adapter."""

    state_interval_ms: Millis = 100
    """Maximum interval between two state messages to the other adapters."""

    checkpoint_interval: Count = 1_024
    """Source messages between two checkpoints; equal at all adapters of a feed."""

    checkpoints_max: Count = 64
    """Number of own checkpoints kept per source stream for comparison with the active adapter's."""

    active_lost_ms: Millis = 2_000
    """Silence after which the active adapter counts as lost; a closed connection counts at once."""

    claim_ms: Millis = 100
    """Time that the next adapter in rank waits for the one before it to take over."""

    startup_ms: Millis = 1_000
    """Time that a starting adapter listens before it may take a free role; long enough to reach the others."""

    handover_ms: Millis = 200
    """Time that an active adapter that lost source messages waits for a backup that has them."""

    without_synchronised: Literal["wait", "promote"] = "promote"
    """If the active adapter is lost and no backup is synchronised: wait for an operator, or promote the healthiest
    and announce the discontinuity."""

    pause_ms: Millis = 5
    """Length of a pause in which a backup lets the active adapter get ahead."""

    pause_every: Count = 1
    """Number of source messages between two such pauses."""

    unsynchronised_max: Count = 16
    """Number of consecutive failed comparisons after which a backup considers going off-line. A discontinuity restarts
    the count."""

    offline: Literal["lowest", "lower-than-any"] = "lowest"
    """A backup goes off-line if its health is the lowest of all backups, or lower than that of at least one other."""

    held_messages_max: Count = 1_000_000
    """Maximum number of source messages kept per source stream while conversion waits."""

    held_bytes_max: Size = 64 * 1024 * 1024
    """Maximum size of these messages."""

    image_chunk_size: Annotated[int, msgspec.Meta(ge=256, le=1024 * 1024)] = 65_536
    """Size of the chunks in which a conversion state is sent."""

    image_bytes_per_s: Size = 50_000_000
    """Rate at which a conversion state is sent to one backup, limited so that the active adapter is not disturbed."""

    image_size_max: Size = 1024 * 1024 * 1024
    """Maximum size of a conversion state that a backup accepts."""

    image_timeout_ms: Millis = 2_000
    """Silence after which a backup requests the conversion state again."""


class ServiceConfig(Config, frozen=True):
    """The stream service: streams over TCP for each subscriber."""

    host: str = "127.0.0.1"
    port: Port = 0
    """0: any free port."""

    tls: TlsConfig | None = None
    secret_file: str = ""
    """TLS, and a secret shared with subscribers, are required to listen beyond the loopback address."""

    open: bool = False
    """True: no token is required to receive and send; only for a plant on one machine."""

    subscribers_max: ServiceCount = 1_024
    queue_bytes_max: ServiceCount = 16 * 1024 * 1024
    """Maximum number of bytes that wait for one subscriber; above it, the subscriber is cut off."""

    packet_size_max: Annotated[int, msgspec.Meta(ge=PACKET_SIZE_MIN, le=PACKET_SIZE_MAX)] = 16_384
    """Maximum size of a packet on TCP."""

    contribution_size_max: ServiceCount = PACKET_SIZE_DEFAULT - 128
    """Maximum size of a contributed message with its topic: it must fit into one packet of the adapter."""
