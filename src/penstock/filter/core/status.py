"""The status of a filter module for its operator."""

import msgspec


class ApplicationStatus(msgspec.Struct, frozen=True):
    name: str
    application_id: int
    delivery: str
    address: str
    packets: int
    """Packets sent to its consumer; applications with shared delivery have the same count."""

    bytes: int


class FilterStatus(msgspec.Struct, frozen=True):
    name: str
    control_port: int
    address: str
    """Address of the socket that sends packets and accepts repair requests."""

    repair: str
    is_in_touch: bool
    """True if the administration server answers, or if there is none."""

    receiving_lease_s: float | None
    """The remaining time of the lease of authentication keys if no administration server answers; None: without one."""

    receiving_trouble: str
    """A readable warning about this lease, or nothing."""

    groups: int
    """Number of joined groups."""

    interests: int
    messages: int
    """Messages received from the network in order."""

    unwanted: int
    """Messages that matched for no application."""

    passed: int
    """Messages sent to applications, counted once for each application."""

    applications: list[ApplicationStatus]


def gauges_of(status: FilterStatus) -> dict[str, float]:
    lease = {} if status.receiving_lease_s is None else {"filter_receiving_lease_seconds": status.receiving_lease_s}
    return {
        "filter_applications": len(status.applications),
        "filter_groups": status.groups,
        "filter_interests": status.interests,
        "filter_in_touch": status.is_in_touch,
        **lease,
    }
