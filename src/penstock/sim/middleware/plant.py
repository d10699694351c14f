"""The scenario `middleware`: publishers and receivers on a faulty network."""

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.ids import parse_group
from penstock.middleware import PublisherConfig, ReceiverConfig
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.sim.datagram_node import Viewer
from penstock.sim.disk import DiskFaults
from penstock.sim.middleware.behaviour_checkers import (
    STEP_NS,
    BoundsChecker,
    CollisionChecker,
    LosslessChecker,
    PaceChecker,
    PunctualityChecker,
    RequestChecker,
    SourceChecker,
)
from penstock.sim.middleware.checkers import CompletenessChecker, ContentChecker, StoryChecker, StreamChecker
from penstock.sim.middleware.faults import MiddlewareFaultSchedule
from penstock.sim.middleware.nodes import PublisherNode, ReceiverNode
from penstock.sim.middleware.stranger import Stranger
from penstock.sim.middleware.stream_plant import StreamPlant
from penstock.sim.network import LinkFaults, Network
from penstock.sim.plant import PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World


class PlantOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    publishers: int = 2
    receivers: int = 3
    groups: int = 2
    messages_per_s: int = 200
    message_size_max: int = 200
    large_messages: float = 0.0
    publisher: PublisherConfig = PublisherConfig()
    receiver: ReceiverConfig = ReceiverConfig()
    link: LinkFaults = msgspec.field(default_factory=LinkFaults)
    disk: DiskFaults = msgspec.field(default_factory=DiskFaults)
    fault_interval_ms: int = 0
    """Mean time between crashes, stalls, cuts and storms; 0 for none."""
    is_authentic: bool = False
    """True if publishers and receivers have keys; a stranger without a key then forges packets and sends recorded ones
    again."""

    def is_mild(self) -> bool:
        """True if everything can be repaired: no crashes, little loss, large buffers, patient receivers."""
        return (
            self.fault_interval_ms == 0
            and self.link.loss + self.link.corrupt <= 0.11
            and self.publisher.retransmission_packets_max >= 4_096
            and self.receiver.window_packets_max >= 4_096
            and self.receiver.nack_attempts_max >= 12
        )

    @staticmethod
    def draw(randomness: SeededRandomness) -> "PlantOptions":
        """The options of a seed: mild to merciless."""
        pick = randomness
        is_mild = pick.chance(0.25)  # so mild that everything must be repaired
        is_small = not is_mild and pick.chance(0.5)  # buffers so small that repairs come too late
        by_multicast = pick.chance(0.5)
        return PlantOptions(
            publishers=pick.between(1, 3),
            receivers=pick.between(1, 4),
            groups=pick.between(1, 2),
            messages_per_s=pick.choose([20, 100, 400]),
            message_size_max=pick.choose([32, 200, 1_000]),
            large_messages=pick.choose([0.0, 0.02, 0.1]),
            publisher=PublisherConfig(
                packet_size_max=pick.choose([384, 1_472]),
                linger_us=pick.choose([0, 0, 2_000]),
                keep_alive_ms=pick.choose([100, 1_000]),
                keep_alive_packets=pick.choose([3, 1_000]),
                retransmission_packets_max=16 if is_small else 4_096,
                repair="multicast" if by_multicast else "unicast",
            ),
            receiver=ReceiverConfig(
                join=pick.choose(["live", "start"]),
                nack="multicast" if by_multicast else "unicast",
                nack_attempts_max=12 if is_mild else pick.choose([3, 12]),
                window_packets_max=32 if is_small else 4_096,
                window_bytes_max=8_192 if is_small else 16_777_216,
            ),
            link=LinkFaults(
                loss=pick.choose([0.01, 0.1] if is_mild else [0.0, 0.01, 0.1, 0.3]),
                duplicate=pick.choose([0.0, 0.02, 0.2]),
                corrupt=pick.choose([0.0, 0.01] if is_mild else [0.0, 0.01, 0.05]),
                reorder=pick.choose([0.0, 0.05, 0.3]),
                delay_max_ns=pick.choose([200_000, 5_000_000]),
                reorder_delay_ns=pick.choose([1_000_000, 50_000_000]),
            ),
            disk=DiskFaults(fsync_failure=pick.choose([0.0, 0.3]), slow_fsync=pick.choose([0.0, 0.2])),
            fault_interval_ms=0 if is_mild else pick.choose([0, 500, 3_000]),
            is_authentic=pick.chance(0.4),
        )


class Summary(PlantSummary, kw_only=True):
    messages_published: int
    messages_delivered: int
    packets_sent: int
    datagrams_lost: int
    nacks_sent: int
    repairs_sent: int
    packets_reported_lost: int
    crashes: int
    packets_forged: int
    packets_resent: int


class MiddlewarePlant(StreamPlant[PlantOptions, Summary]):
    """Publishers and receivers on a faulty network, with checkers around them."""

    options_type = PlantOptions
    summary_type = Summary
    step_ns = STEP_NS
    checkers: list[StreamChecker]

    def __init__(self, world: World, options: PlantOptions) -> None:
        super().__init__(world, options)
        self.network = Network(world, options.link)
        self.groups = [parse_group(f"239.7.0.{n + 1}") for n in range(options.groups)]
        self.publishers = [PublisherNode(self, n + 1) for n in range(options.publishers)]
        self.receivers = [ReceiverNode(self, n + 1) for n in range(options.receivers)]
        self.nodes = [*self.receivers, *self.publishers]
        self.stranger = Stranger(self) if options.is_authentic else None
        self.faults = MiddlewareFaultSchedule(self)
        stories = StoryChecker(joins_at_start=options.receiver.join == "start")
        self.contents = ContentChecker()
        self.checkers = [
            stories,
            self.contents,
            CompletenessChecker(stories, self.contents, self.receivers),
            BoundsChecker(),
            PaceChecker(options.receiver),
            PunctualityChecker(),
            CollisionChecker(),
            SourceChecker(),
            RequestChecker(),
        ]
        if options.is_mild():
            self.checkers.append(LosslessChecker())

    def receivers_of_streams(self) -> list[ReceiverNode]:
        return self.receivers

    def incoming_streams(self) -> Iterator[tuple[Viewer, IncomingStream]]:
        for receiver in self.receivers:
            for stream in receiver.streams():
                yield receiver.viewer(), stream

    def settle(self) -> None:
        """Continue for a second, then end the publishers. Of several publishers one is killed; the others send an
        end message."""
        self.is_healed = True
        self.run(NS_PER_SECOND)
        for publisher in self.publishers:
            publisher.rest()
        self.run(2 * self.options.receiver.publisher_expiry_ms * NS_PER_MS)
        for publisher in self.publishers:
            is_last = publisher is self.publishers[-1] and len(self.publishers) > 1
            publisher.end(is_killed=is_last)
        self.run(2 * self.options.receiver.publisher_expiry_ms * NS_PER_MS)

    def counts(self) -> dict[str, Any]:
        return self.stream_counts() | {
            "messages_delivered": self.contents.delivered,
            "packets_sent": self.total("packets_sent"),
            "datagrams_lost": self.network.statistics.lost + self.network.statistics.cut,
        }


run_seed = SeedRun(
    "middleware", MiddlewarePlant.draw, "every message was delivered once and in order, or reported lost"
)
