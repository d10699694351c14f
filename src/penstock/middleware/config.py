"""Configuration and limits of publishers, receivers and mergers."""

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
    """Maximum size of a packet; longer messages are fragmented."""

    linger_us: Microseconds = 50
    """Maximum time that a message of a burst waits for further messages, with which it shares packets. A lone message
    never waits. 0: no message waits, and every publish() sends a packet."""

    keep_alive_first_ms: Milliseconds = 10
    """Silence after which the first keep-alive is sent; it doubles up to keep_alive_ms while the silence lasts."""

    keep_alive_ms: Milliseconds = 1_000
    """Maximum silence on a group in use."""

    keep_alive_packets: Count = 1_000
    """Maximum number of consecutive packets without the keep-alive flag."""

    retransmission_packets_max: Count = 65_536
    """Packets kept for repair, per group."""

    retransmission_bytes_max: Count = 64 * 1024 * 1024
    """Bytes kept for repair, per group."""

    nack: Literal["unicast", "multicast"] = "unicast"
    """Where repair requests are received: at the publisher's own address, or also on its groups. In the second case
    the publisher examines all datagrams on its groups."""

    repair: Literal["unicast", "multicast"] = "unicast"
    """The destination of a repair: the requester, or the group."""

    repair_hold_ms: Milliseconds = 5
    """Time in which a packet repaired by multicast is not sent again, however many receivers request it."""

    repair_packets_max: Count = 1_024
    """Maximum number of packets sent again for one request, so that a small datagram cannot cause a flood."""

    repair_rate_max: Count = 32_000
    """Retransmitted packets per second in total, in slices of one millisecond; receivers request missing packets
    again."""

    repair_source_rate_max: Count = 20_000
    """Retransmitted packets per second for one address."""

    request_rate_max: Count = 20_000
    """Repair requests per second in total; requests over the limit are dropped unread and counted."""

    request_source_rate_max: Count = 1_000
    """Repair requests per second from one address."""

    linger_ms: Milliseconds = 2_000
    """Time in which a closed publisher answers repair requests."""

    is_replay: bool = False
    """Marks every packet as a replay; receivers accept replays only if configured."""


class ReceiverConfig(Config, frozen=True):
    join: Literal["live", "start"] = "live"
    """The first packet of a new stream: the first one received, or the first one of the epoch."""

    nack: Literal["unicast", "multicast"] = "unicast"
    """The destination of repair requests: the publisher, or the group, where other receivers hear them and suppress
    theirs."""

    nack_delay_us: Microseconds = 500
    """Maximum random wait before the first request; the minimum is half of it. Reordered packets arrive in this
    time."""

    nack_retry_ms: Milliseconds = 10
    """Time to wait for an answer; doubles with every attempt, up to 64 times this."""

    nack_attempts_max: Annotated[int, msgspec.Meta(ge=1, le=64)] = 12
    """Number of requests after which a packet is reported lost."""

    window_packets_max: Count = 65_536
    """Maximum number of packets between the next one to deliver and the newest one received."""

    window_bytes_max: Count = 64 * 1024 * 1024
    """Bytes per stream held back while a repair is pending."""

    message_size_max: Annotated[int, msgspec.Meta(ge=1, le=MESSAGE_SIZE_MAX)] = MESSAGE_SIZE_MAX
    """Maximum size of a reassembled message."""

    publisher_expiry_ms: Milliseconds = 5_000
    """Silence after which a publisher's stream counts as ended; a few times its keep_alive_ms."""

    streams_max: Count = 65_536
    """Maximum number of streams. A further stream replaces an unproven stream, which has been heard for less than
    publisher_expiry_ms; if all streams are proven, packets of the further stream are dropped and counted."""

    buffer_bytes_max: Count = 256 * 1024 * 1024
    """Total buffer size of all streams: packets that wait for a repair, ranges of missing packets, and unfinished
    messages."""

    accept: Literal["live", "replay", "both"] = "live"
    """Whether packets with the REPLAY flag are refused, accepted exclusively, or accepted too."""


class MergerConfig(Config, frozen=True):
    held_messages_max: Count = 8_192
    """Messages of a source stream held back until another stream delivers the missing ones before them."""

    held_bytes_max: Count = 16 * 1024 * 1024
    """Bytes of a source stream held back."""

    held_bytes_total_max: Count = 256 * 1024 * 1024
    """Bytes held back of all source streams, with an overhead of 512 per message. Above it, the source streams that
    hold most give up missing messages (cause `memory`), until one eighth is free."""

    wait_ms: Milliseconds = 2_000
    """Maximum time that a message is held back while a stream that could deliver the missing messages is silent. The
    wait also ends when every such stream has passed the missing messages or has ended."""

    source_streams_max: Count = 65_536
    """Maximum number of source streams. A further one replaces a source stream that no publisher sends any more; if
    there is none, its messages are dropped and counted."""
