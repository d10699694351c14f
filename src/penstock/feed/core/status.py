"""Status of an adapter: for its status page, its metrics and its health check."""

import msgspec

from penstock.base.clock import NS_PER_US
from penstock.feed.core.service.accounts import StreamAccount
from penstock.feed.core.sync.health import Health

PERCENTILES = (50.0, 99.0, 99.9)


class StreamStatus(msgspec.Struct, frozen=True):
    """One source stream."""

    id: int
    name: str
    is_synchronised: bool
    next_source_sequence: int
    next_message_sequence: int


class AdapterStatus(msgspec.Struct, frozen=True):
    """The whole adapter; /status has it as JSON."""

    name: str
    feed: str
    index: int
    role: str
    term: int
    is_online: bool
    is_synchronised: bool
    publisher_id: int
    epoch: int
    service_port: int
    peers_port: int
    peers: list[int]
    is_registered: bool
    streams: list[StreamStatus]
    subscribers: list[StreamAccount]
    health: Health
    score: int
    journal_trouble: str
    sealing_lease_s: float | None
    """For a sealed feed: the remaining time of the sealing lease if no administration server answers; None: not
    sealed."""
    sealing_trouble: str
    latency_us: dict[str, float]
    """From a datagram's arrival in the process to the moment its messages were sent, by percentile."""


def shown_latency(percentiles_ns: dict[float, int]) -> dict[str, float]:
    return {f"p{q:g}": value / NS_PER_US for q, value in percentiles_ns.items()}


def gauges_of(status: AdapterStatus) -> dict[str, float]:
    """The status in numbers, for metrics."""
    health = status.health
    latencies = {f"latency_{name.replace('.', '_')}_us": value for name, value in status.latency_us.items()}
    lease = {} if status.sealing_lease_s is None else {"adapter_sealing_lease_seconds": status.sealing_lease_s}
    return {
        "adapter_is_active": float(status.role == "active"),
        "adapter_term": float(status.term),
        "adapter_is_online": float(status.is_online),
        "adapter_is_synchronised": float(status.is_synchronised),
        "adapter_subscribers": float(len(status.subscribers)),
        "adapter_health_score": float(status.score),
        "adapter_memory_free_ratio": health.memory_free,
        "adapter_cpu_free_ratio": health.cpu_free,
        "adapter_errors_per_second": health.errors_per_s,
        "adapter_messages_per_second": health.messages_per_s,
        "adapter_transmission_ratio": health.transmission,
        "adapter_lag_seconds": health.lag_ns / 1e9,
        **{f"adapter_{name}": value for name, value in latencies.items()},
        **lease,
    }
