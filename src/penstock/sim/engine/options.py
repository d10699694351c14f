"""Options and summary of a simulated distribution plant."""

from typing import Literal

import msgspec

from penstock.engine.control import ClassWish
from penstock.sim.engine.consumers import Taste
from penstock.sim.plant import PlantSummary
from penstock.sim.randomness import SeededRandomness


class EnginePlantOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    topics: int = 6
    muxes: int = 1
    depth: int = 1
    """Levels of multiplexers; with more than 1, multiplexers are chained."""
    tastes: tuple[Taste, ...] = (Taste("ring", "critical"), Taste("session", "critical"))
    """Kinds of consumers; every node has one consumer of each."""
    updates_per_s: int = 400
    history_bytes: int = 262_144
    change_interval_ms: int = 100
    chain_class: ClassWish = "critical"
    chain_per_second: float = 0.0
    chain_bytes_per_s: int = 20_000_000
    fault_interval_ms: int = 0
    chain: Literal["session", "datagram"] = "session"
    missed: Literal["resend", "resend_all", "wait"] = "resend"
    has_group: bool = False
    """True: the plant multicasts adaptive updates to all multiplexers."""
    kept_packets: int = 8_192
    """Packets kept for repair per stream of datagrams."""
    nack_attempts: int = 12
    loss: float = 0.0
    """Share of lost datagrams; half as many are duplicated, and as many delayed."""
    budget_bytes: int = -1
    """Maximal number of bytes written at once for an update; -1: no limit."""
    has_signals: bool = False
    node_per_second: float = 0.0
    """Limit of metered updates per node; the next option is the limit per consumer. 0: no limit."""
    consumer_per_second: float = 0.0
    regions: Literal["own", "common", "shared"] = "own"
    """Location of records: offsets of each consumer, the same offsets for all, or the same region for all."""

    @property
    def is_conflated_above(self) -> bool:
        """True if records on the way to multiplexers may replace several updates."""
        return self.chain_class != "critical"

    @property
    def is_lossy_above(self) -> bool:
        """True: adaptive updates can be lost on their way to a multiplexer without a report. The next update
        replaces them, except for fields that accumulate over a span (protocol/distribution-datagrams.md)."""
        return self.chain == "datagram" and self.chain_class == "adaptive" and (self.has_group or self.missed == "wait")

    @staticmethod
    def draw(randomness: SeededRandomness) -> "EnginePlantOptions":
        """The options of a seed: mild to merciless."""
        pick = randomness
        wishes: list[tuple[ClassWish, float]] = [
            ("critical", 0), ("critical", 0), ("adaptive", 0), ("adaptive", 0), ("metered", 20), ("metered", 200),
            ("auto", 50),
        ]  # fmt: skip
        sinks: list[Literal["ring", "session"]] = ["ring", "session"]
        tastes = [
            Taste(sink, cls, per_second, is_slow)
            for sink in sinks
            for cls, per_second in wishes
            for is_slow in (False, True)
        ]
        tastes += [Taste("region", "adaptive", 0, is_slow) for is_slow in (False, True)] * 4
        regions: list[Literal["own", "common", "shared"]] = ["own", "common", "shared"]
        links: list[Literal["session", "datagram"]] = ["session", "datagram"]
        misses: list[Literal["resend", "resend_all", "wait"]] = ["resend", "wait"]
        chains: list[tuple[ClassWish, float]] = [("critical", 0), ("critical", 0), ("adaptive", 0), ("metered", 100)]
        chain_class, chain_per_second = pick.choose(chains)
        has_group = chain_class == "adaptive" and pick.chance(0.6)
        return EnginePlantOptions(
            topics=pick.choose([3, 6, 12]),
            muxes=pick.between(0, 2),
            depth=pick.between(1, 2),
            tastes=tuple(pick.choose(tastes) for _ in range(pick.between(2, 4))),
            updates_per_s=pick.choose([200, 500, 1_000]),
            history_bytes=pick.choose([65_536, 262_144, 4_194_304]),
            change_interval_ms=pick.choose([30, 200]),
            chain_class=chain_class,
            chain_per_second=chain_per_second,
            chain_bytes_per_s=pick.choose([1_000_000, 20_000_000]),
            fault_interval_ms=pick.choose([0, 15, 50]),
            regions=pick.choose(regions),
            chain=pick.choose(links),
            missed=pick.choose([*misses, "resend_all"] if has_group else misses),
            has_group=has_group,
            kept_packets=pick.choose([64, 8_192]),
            nack_attempts=pick.choose([3, 12]),
            loss=pick.choose([0.0, 0.02, 0.1]),
            budget_bytes=pick.choose([-1, -1, 3_000]),
            has_signals=pick.chance(0.5),
            node_per_second=pick.choose([0.0, 0.0, 0.0, 300.0]),
            consumer_per_second=pick.choose([0.0, 0.0, 0.0, 100.0]),
        )


class EngineSummary(PlantSummary, kw_only=True):
    updates_published: int
    updates_delivered: int
    updates_merged: int
    updates_metered: int
    updates_replayed: int
    refreshes: int
    receipts: int
    overruns: int
    connections: int
    crashes: int
    rule_changes: int
    datagrams_lost: int
    datagram_losses: int
    reliefs: int
    updates_relieved: int
    records_read: int
    records_read_amid: int
    session_changes: int
    records_withdrawn: int
