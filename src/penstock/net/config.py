"""How connections and clocks behave, and every bound they keep."""

from typing import Annotated

import msgspec

from penstock.base.config import Config

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class TlsConfig(Config, frozen=True):
    """PEM files, for connections beyond this machine."""

    certificate: str
    private_key: str
    ca_file: str
    """Whom the other side's certificate must come from."""


class StreamConfig(Config, frozen=True):
    """What holds for every connection on a byte stream, whatever is spoken on it."""

    connections_max: Count = 1_024
    """Connections that a server has at a time; further ones are refused and counted."""

    handshake_ms: Milliseconds = 5_000
    """Time until a handshake is done."""

    ping_ms: Milliseconds = 5_000
    """Between two heartbeats."""

    silence_ms: Milliseconds = 15_000
    """Silence after which the peer is taken for dead; a few times ping_ms."""

    write_ms: Milliseconds = 10_000
    """How long a peer may leave a full write buffer untouched."""

    write_size_max: Count = 1024 * 1024
    """Bytes written but not yet sent, above which a sender waits."""

    inbox_messages_max: Count = 1_024
    """Messages the application has not taken yet, above which no more bytes are read."""

    linger_ms: Milliseconds = 1_000
    """How long a connection that ends waits for the peer to end it as well, so that last words arrive."""


class ControlConfig(StreamConfig, frozen=True):
    message_size_max: Count = 1024 * 1024
    """Bytes of one control message."""


class WebSocketConfig(StreamConfig, frozen=True):
    message_size_max: Count = 1024 * 1024
    """Bytes of one message, all its fragments together."""

    fragments_max: Count = 64
    """Fragments of one message."""

    handshake_size_max: Count = 16_384
    """Bytes of the HTTP request or response that opens the connection."""

    headers_max: Annotated[int, msgspec.Meta(ge=1, le=128)] = 64
    """Header lines of that request."""


class ClockConfig(Config, frozen=True):
    drift_ppm: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 100
    """How fast two clocks can drift apart: microseconds a second, both clocks' errors together."""

    age_ms_max: Milliseconds = 600_000
    """An estimate whose last exchange is older than this is no longer given."""
