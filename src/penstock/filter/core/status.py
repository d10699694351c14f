"""How a filter module is, as its operator sees it."""

import msgspec


class ApplicationStatus(msgspec.Struct, frozen=True):
    name: str
    application_id: int
    delivery: str
    address: str
    packets: int
    """That its consumer was sent; applications with shared delivery have one together."""

    bytes: int


class FilterStatus(msgspec.Struct, frozen=True):
    name: str
    control_port: int
    address: str
    """Of the socket from which packets come, and where repairs are asked for."""

    repair: str
    is_in_touch: bool
    """Whether the administration server answers; true where there is none."""

    receiving_lease_s: float | None
    """The remaining time of the lease of authentication keys if no administration server answers; None: without one."""

    receiving_trouble: str
    """A readable warning about this lease, or nothing."""

    groups: int
    """That are listened to."""

    interests: int
    messages: int
    """Received from the network, and in order."""

    unwanted: int
    """Of these: wanted by nobody."""

    passed: int
    """To applications; one that several want counts for each."""

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
