"""Configuration and limits of connections and clocks."""

from typing import Annotated

import msgspec

from penstock.base.config import Config

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class TlsConfig(Config, frozen=True):
    """PEM files for connections to other hosts."""

    certificate: str
    private_key: str
    ca_file: str
    """CA certificates that the peer's certificate must be signed by."""


class StreamConfig(Config, frozen=True):
    """Settings of every connection on a byte stream, whatever its protocol."""

    connections_max: Count = 1_024
    """Maximum number of a server's connections; further ones are refused and counted."""

    handshake_ms: Milliseconds = 5_000
    """Time limit of the handshake."""

    ping_ms: Milliseconds = 5_000
    """Interval of heartbeats."""

    silence_ms: Milliseconds = 15_000
    """Silence after which the peer is considered dead; a few times ping_ms."""

    write_ms: Milliseconds = 10_000
    """Time after which a peer that does not read from a full write buffer is cut off."""

    write_size_max: Count = 1024 * 1024
    """Unsent bytes above which a sender waits."""

    inbox_messages_max: Count = 1_024
    """Number of unread messages above which no more bytes are read from the socket."""

    linger_ms: Milliseconds = 1_000
    """Time for the peer to close too, so that last messages arrive."""


class ControlConfig(StreamConfig, frozen=True):
    message_size_max: Count = 1024 * 1024
    """Maximum size of one control message."""


class WebSocketConfig(StreamConfig, frozen=True):
    message_size_max: Count = 1024 * 1024
    """Maximum size of one message with all its fragments."""

    fragments_max: Count = 64
    """Maximum number of fragments of one message."""

    handshake_size_max: Count = 16_384
    """Maximum size of the HTTP request or response that opens the connection."""

    headers_max: Annotated[int, msgspec.Meta(ge=1, le=128)] = 64
    """Maximum number of header lines in that request."""


class ClockConfig(Config, frozen=True):
    drift_ppm: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """Maximum drift between two clocks in microseconds per second, the sum of both errors."""

    age_ms_max: Milliseconds = 600_000
    """Age of the last exchange after which an estimate is no longer reported."""
