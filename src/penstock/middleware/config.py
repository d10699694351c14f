"""How publishers and receivers behave, and every bound they keep."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.limits import MESSAGE_SIZE_MAX, PACKET_SIZE_DEFAULT, PACKET_SIZE_MAX
from penstock.wire import PACKET_SIZE_MIN

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Microseconds = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]


class PublisherConfig(Config, frozen=True):
    packet_size_max: Annotated[int, msgspec.Meta(ge=PACKET_SIZE_MIN, le=PACKET_SIZE_MAX)] = PACKET_SIZE_DEFAULT
    """Bytes of a packet; longer messages are cut."""

    flush_deadline_us: Microseconds = 0
    """How long a message may wait for company in its packet; 0 sends at once."""

    keep_alive_first_ms: Milliseconds = 10
    """Silence after which the first keep-alive is sent; it doubles up to keep_alive_ms while the silence lasts."""

    keep_alive_ms: Milliseconds = 1_000
    """Longest silence on a group in use."""

    keep_alive_packets: Count = 1_000
    """Most packets without the keep-alive mark in a row."""

    retransmission_packets_max: Count = 8_192
    """Packets kept for repair, per group."""

    retransmission_bytes_max: Count = 16 * 1024 * 1024
    """Bytes kept for repair, per group."""

    nack: Literal["unicast", "multicast"] = "unicast"
    """Whether requests for repairs are heard at the publisher's own address, or on its groups, too: then everything
    that anybody sends there is looked at."""

    repair: Literal["unicast", "multicast"] = "unicast"
    """Whether a repair goes to the one who asked, or to the group."""

    repair_hold_ms: Milliseconds = 5
    """A packet repaired by multicast is not sent again within this time, however many ask."""

    repair_packets_max: Count = 1_024
    """Most packets sent again for one request, so that a small datagram cannot ask for a flood."""

    repair_rate_max: Count = 32_000
    """Retransmitted packets per second in total, in slices of one millisecond; receivers request missing packets
    again."""

    repair_source_rate_max: Count = 20_000
    """The same for one address."""

    request_rate_max: Count = 20_000
    """Repair requests per second in total; requests over the limit are dropped unread and counted."""

    request_source_rate_max: Count = 1_000
    """The same for one address."""

    linger_ms: Milliseconds = 2_000
    """How long a closed publisher goes on answering repair requests."""

    is_replay: bool = False
    """Every packet says that it is from the past, not live; receivers take it only when they are told to."""


class ReceiverConfig(Config, frozen=True):
    join: Literal["live", "start"] = "live"
    """Whether a stream met for the first time begins with the packet that was seen, or with the epoch's first."""

    nack: Literal["unicast", "multicast"] = "unicast"
    """Whether repair requests go to the publisher, or to the group, where others hear them and hold theirs back."""

    nack_delay_us: Microseconds = 500
    """Longest random wait before the first request, half of it the shortest: reordered packets arrive by themselves."""

    nack_retry_ms: Milliseconds = 10
    """Wait for an answer; it doubles with every attempt, up to 64 times this."""

    nack_attempts_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 12
    """Requests after which a packet is reported lost."""

    window_packets_max: Count = 8_192
    """Packets between the next one to deliver and the newest one seen."""

    window_bytes_max: Count = 16 * 1024 * 1024
    """Bytes held back per stream while a repair is awaited."""

    message_size_max: Annotated[int, msgspec.Meta(ge=1, le=MESSAGE_SIZE_MAX)] = MESSAGE_SIZE_MAX
    """Bytes of a reassembled message."""

    publisher_expiry_ms: Milliseconds = 5_000
    """Silence after which a publisher's stream is taken for ended; a few times its keep_alive_ms."""

    streams_max: Count = 65_536
    """Maximum number of streams. A further stream replaces an unproven stream, which has been heard for less than
    publisher_expiry_ms; if all streams are proven, packets of the further stream are dropped and counted."""

    buffer_bytes_max: Count = 256 * 1024 * 1024
    """Total buffer size of all streams: packets that wait for a repair, ranges of missing packets, and unfinished
    messages."""

    accept: Literal["live", "replay", "both"] = "live"
    """Whether packets from the past (the mark REPLAY) are refused, are all that is taken, or are taken as well."""


class MergerConfig(Config, frozen=True):
    held_messages_max: Count = 8_192
    """Messages of a source stream held back until another stream brings what is missing before them."""

    held_bytes_max: Count = 16 * 1024 * 1024
    """Bytes of them."""

    held_bytes_total_max: Count = 256 * 1024 * 1024
    """Bytes held back of all source streams together, with 512 for each message. Beyond that the source streams that
    hold most go on without what is missing (cause `memory`), until one eighth is free."""

    wait_ms: Milliseconds = 2_000
    """How long a message is held back at most while a stream that could bring what is missing says nothing. It ends
    by itself, without this, when each of them has gone past it or has ended."""

    source_streams_max: Count = 65_536
    """Maximum number of source streams. A further one replaces a source stream that no publisher sends any more; if
    there is none, its messages are dropped and counted."""
