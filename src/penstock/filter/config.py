"""Configuration and limits of a filter module's core."""

from typing import Annotated, Literal

import msgspec

from penstock.base.config import Config
from penstock.base.ids import parse_group
from penstock.middleware.config import Count, Milliseconds, ReceiverConfig

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class FilterConfig(Config, frozen=True):
    """Configuration of the core. Memory for repairs is at most receiver.streams_max times kept_bytes_max."""

    repair: Literal["filter", "receivers"] = "filter"
    """Who requests packets that the network lost: the module, once for all its applications, or each application,
    from the publisher."""

    shared: Literal["mask", "residual"] = "mask"
    """The form of shared delivery: messages with a mask of the applications that they match, or all messages that
    match for any of the applications, which match them again."""

    shared_group: str = "239.255.75.1"
    """The multicast address of the first set of applications that share a copy; the next sets have the following
    addresses."""

    shared_port: Port = 7403

    receiver: ReceiverConfig = ReceiverConfig(streams_max=4_096)
    """The network side: joining, repairing, giving up and expiring streams, and their maximum number."""

    applications_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1_024
    interests_max: Count = 16_000_000
    interests_per_application_max: Count = 4_000_000
    conditions_max: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16_384
    """Maximum number of different conditions of all applications; having no condition counts as one."""

    conditions_per_application_max: Count = 64

    groups_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 4_096
    """Maximum number of multicast groups joined at a time."""

    kept_packets_max: Count = 8_192
    """Packets per stream kept for repairs to applications (repair = "filter")."""

    kept_bytes_max: Count = 4 * 1024 * 1024
    """Bytes per stream kept for repairs."""

    repair_hold_ms: Milliseconds = 5
    """Time in which a packet is not sent again to the same application."""

    repair_packets_max: Count = 1_024
    """Maximum number of packets sent again for one request."""

    repair_rate_max: Count = 200_000
    """Packets sent again per second in total; applications repeat requests for further packets."""

    repair_source_rate_max: Count = 50_000
    """Packets sent again per second for one application."""

    linger_ms: Milliseconds = 5_000
    """Time in which applications may request packets of a stream that has ended."""

    map_transition_ms: Milliseconds = 10_000
    """Time in which old groups stay joined after a new topic-to-group map has moved their topics."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_group(self.shared_group)
