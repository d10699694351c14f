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
    """How the copies of one source stream that come over several lines are made into one."""

    join: Literal["live", "start"] = "live"
    """Begin with the first message that comes, or ask for everything since the session's first."""

    gap_wait_us: Micros = 2_000
    """How long the other line may take to bring what one has lost, before it is asked for."""

    request_retry_ms: Millis = 20
    """Ask again after this, then after twice as long, and so on."""

    request_attempts_max: Annotated[int, msgspec.Meta(ge=0, le=100)] = 5
    """How often to ask; what does not come then is lost. 0 where there is nobody to ask."""

    window_messages_max: Annotated[int, msgspec.Meta(ge=16, le=2**22)] = 65_536
    """Messages that may wait for those before them. What is farther ahead is dropped, and asked for later."""

    jump_wait_ms: Annotated[int, msgspec.Meta(ge=0, le=3_600_000)] = 1_000
    """When all that comes for so long is too far ahead to wait for, what is between is lost and it goes on there."""

    reset_wait_ms: Millis = 5_000
    """When all that comes for so long has been there before, the source has begun to count anew: a new session."""

    silent_ms: Millis = 3_000
    """A line that brings nothing for so long, not even heartbeats, is reported."""


class SynchroniserConfig(Config, frozen=True):
    """How the adapters of a feed keep together."""

    index: Annotated[int, msgspec.Meta(ge=0, lt=ADAPTERS_MAX)] = 0
    """Which of the feed's adapters this is; each has its own."""

    state_interval_ms: Millis = 100
    """How often adapters tell each other their state, at least."""

    checkpoint_interval: Count = 1_024
    """Source messages between two checkpoints; the same at all adapters of a feed."""

    checkpoints_max: Count = 64
    """Own checkpoints remembered per source stream, to be compared with the active adapter's."""

    active_lost_ms: Millis = 2_000
    """Silence after which the active adapter is taken for lost; a cut connection says so at once."""

    claim_ms: Millis = 100
    """How long the next in line waits for the one before it to take over."""

    startup_ms: Millis = 1_000
    """How long a starting adapter listens before it may take a role nobody has; long enough to reach the others."""

    handover_ms: Millis = 200
    """How long an active adapter that lost source messages waits for a backup that has them."""

    without_synchronised: Literal["wait", "promote"] = "promote"
    """What happens when the active adapter is lost and no backup is synchronised: wait for an operator, or promote the
    healthiest and announce the discontinuity."""

    pause_ms: Millis = 5
    """Length of a backup's pause while it lets the active adapter get ahead."""

    pause_every: Count = 1
    """Source messages between two such pauses."""

    unsynchronised_max: Count = 16
    """Comparisons that fail in a row, after which a backup asks itself whether to go off-line."""

    offline: Literal["lowest", "lower-than-any"] = "lowest"
    """It does so when its health is the lowest of all backups, or lower than that of at least one other."""

    held_messages_max: Count = 1_000_000
    """Source messages kept per source stream while conversion waits."""

    held_bytes_max: Size = 64 * 1024 * 1024
    """Their bytes."""

    image_chunk_size: Annotated[int, msgspec.Meta(ge=256, le=1024 * 1024)] = 65_536
    """Bytes of a conversion state sent at a time."""

    image_bytes_per_s: Size = 50_000_000
    """How fast a conversion state is sent to one backup, so that the active adapter is not disturbed."""

    image_size_max: Size = 1024 * 1024 * 1024
    """Bytes of a conversion state that a backup takes."""

    image_timeout_ms: Millis = 2_000
    """Silence after which a backup asks for the conversion state again."""


class ServiceConfig(Config, frozen=True):
    """The stream service: streams over TCP for each subscriber."""

    host: str = "127.0.0.1"
    port: Port = 0
    """0 takes a free one."""

    tls: TlsConfig | None = None
    secret_file: str = ""
    """TLS, and a secret shared with subscribers, are needed to listen beyond this machine."""

    open: bool = False
    """Whether everybody gets and sends everything without a token; only for a plant on one machine."""

    subscribers_max: ServiceCount = 1_024
    queue_bytes_max: ServiceCount = 16 * 1024 * 1024
    """Bytes that wait for one subscriber; one that has more is cut off."""

    packet_size_max: Annotated[int, msgspec.Meta(ge=PACKET_SIZE_MIN, le=PACKET_SIZE_MAX)] = 16_384
    """Bytes of a packet on TCP."""

    contribution_size_max: ServiceCount = PACKET_SIZE_DEFAULT - 128
    """Bytes of a contributed message with its topic: it must fit one packet of the adapter's."""
