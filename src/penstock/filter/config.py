"""How a filter module behaves, and every bound it keeps."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.ids import parse_group
from penstock.middleware.config import Count, Milliseconds, ReceiverConfig

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class FilterConfig(Config, frozen=True):
    """Of the core. Memory for repairs is at most receiver.streams_max times kept_bytes_max."""

    repair: Literal["filter", "receivers"] = "filter"
    """Who asks for packets that the network lost: the module, once for all its applications, or each application by
    itself, at the publisher."""

    shared: Literal["mask", "residual"] = "mask"
    """What applications with shared delivery get: messages that are marked with who wants them, or all messages that
    somebody of them wants, to be matched again."""

    shared_group: str = "239.255.75.1"
    """The multicast address of the first set of applications that share a copy; further ones count on from it."""

    shared_port: Port = 7403

    receiver: ReceiverConfig = ReceiverConfig(streams_max=4_096)
    """Towards the network: how streams are joined, repaired, given up and expired, and how many there may be."""

    applications_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1_024
    interests_max: Count = 16_000_000
    interests_per_application_max: Count = 4_000_000
    conditions_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16_384
    """Different conditions of all applications, having none being one of them."""

    conditions_per_application_max: Count = 64

    groups_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 4_096
    """Multicast groups listened to at a time."""

    kept_packets_max: Count = 8_192
    """Packets of a stream kept to answer applications that miss some (repair = "filter")."""

    kept_bytes_max: Count = 4 * 1024 * 1024
    """Bytes of them."""

    repair_hold_ms: Milliseconds = 5
    """A packet sent again is not sent again to the same application within this time."""

    repair_packets_max: Count = 1_024
    """Most packets sent again for one request."""

    repair_rate_max: Count = 200_000
    """Packets sent again per second in total; applications that miss more ask again."""

    repair_source_rate_max: Count = 50_000
    """The same for one application."""

    linger_ms: Milliseconds = 5_000
    """How long applications may still ask for packets of a stream that has ended."""

    map_transition_ms: Milliseconds = 10_000
    """How long groups are still listened to from which a new topic-to-group map took all topics that are wanted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_group(self.shared_group)
