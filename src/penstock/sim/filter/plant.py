"""The scenario `filter`: publishers, filter modules and applications."""

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.counters import Cause
from penstock.base.ids import parse_group
from penstock.filter import FilterConfig
from penstock.filter.core.events import Opened, Wish
from penstock.middleware import Address, Collision, PublisherConfig, ReceiverConfig, StreamKey
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.sim.datagram_node import Viewer
from penstock.sim.disk import DiskFaults
from penstock.sim.filter.apps import ApplicationNode
from penstock.sim.filter.checkers import (
    FilterChecker,
    FilteredAccountsChecker,
    FilteredBoundsChecker,
    FilteredContentChecker,
    FilteredRequestChecker,
    FilteredStoryChecker,
)
from penstock.sim.filter.faults import FilterFaultSchedule
from penstock.sim.filter.nodes import FilteredPublisherNode, FilterNode
from penstock.sim.filter.wants import Wants
from penstock.sim.middleware.behaviour_checkers import (
    CollisionChecker,
    LosslessChecker,
    PaceChecker,
    RequestChecker,
    SourceChecker,
)
from penstock.sim.middleware.checkers import MESSAGE_CAUSES, CompletenessChecker
from penstock.sim.middleware.stranger import Stranger
from penstock.sim.middleware.stream_plant import StreamPlant
from penstock.sim.network import LinkFaults, Network
from penstock.sim.plant import PlantSummary
from penstock.sim.randomness import SeededRandomness
from penstock.sim.seed_run import SeedRun
from penstock.sim.world import World
from penstock.wire import PacketFlag, decode

KEEP_ALIVE_MS = 50
EXPIRY_MS = 400
LINGER_MS = 300


class FilterPlantOptions(msgspec.Struct, kw_only=True):
    """Options of a plant."""

    publishers: int = 2
    filters: int = 2
    deliveries: tuple[Wish, ...] = ("unicast", "ring", "shared")
    """Kinds of applications; every filter has one of each."""
    groups: int = 2
    messages_per_s: int = 200
    message_size_max: int = 200
    large_messages: float = 0.0
    change_interval_ms: int = 200
    """Mean time between an application's changes of interest."""
    publisher: PublisherConfig = PublisherConfig(keep_alive_ms=KEEP_ALIVE_MS, linger_ms=LINGER_MS)
    filter: FilterConfig = FilterConfig(receiver=ReceiverConfig(publisher_expiry_ms=EXPIRY_MS), linger_ms=LINGER_MS)
    receiver: ReceiverConfig = ReceiverConfig(publisher_expiry_ms=EXPIRY_MS)
    """Options of the applications' receivers."""
    link: LinkFaults = msgspec.field(default_factory=LinkFaults)
    local: LinkFaults = msgspec.field(default_factory=LinkFaults)
    """Faults of the network between filters and applications."""
    disk: DiskFaults = msgspec.field(default_factory=DiskFaults)
    fault_interval_ms: int = 0
    is_mild: bool = True
    """True if everything can be repaired."""
    is_authentic: bool = False
    """True if publishers, filters and applications have keys; a stranger without a key then forges packets and sends
    recorded ones again."""

    @staticmethod
    def draw(randomness: SeededRandomness) -> "FilterPlantOptions":
        """The options of a seed: mild to merciless."""
        pick = randomness
        is_mild = pick.chance(0.3)
        is_small = not is_mild and pick.chance(0.4)  # buffers so small that repairs come too late
        by_multicast = pick.chance(0.4)
        network = ReceiverConfig(
            nack="multicast" if by_multicast else "unicast",
            nack_retry_ms=4,
            nack_attempts_max=12 if is_mild else pick.choose([3, 12]),
            window_packets_max=32 if is_small else 4_096,
            window_bytes_max=8_192 if is_small else 16_777_216,
            publisher_expiry_ms=EXPIRY_MS,
        )
        repair: Literal["filter", "receivers"] = "filter" if pick.chance(0.5) else "receivers"
        deliveries: list[Wish] = ["unicast", "unicast", "ring", "shared", "shared"]
        return FilterPlantOptions(
            publishers=pick.between(1, 2),
            filters=pick.between(1, 2),
            deliveries=tuple(pick.choose(deliveries) for _ in range(pick.between(1, 3))),
            groups=pick.between(1, 2),
            messages_per_s=pick.choose([50, 200]),
            message_size_max=pick.choose([32, 200]),
            large_messages=pick.choose([0.0, 0.02, 0.1]),
            change_interval_ms=pick.choose([60, 300]),
            publisher=PublisherConfig(
                packet_size_max=pick.choose([384, 1_472]),
                linger_us=pick.choose([0, 0, 2_000]),
                keep_alive_ms=KEEP_ALIVE_MS,
                retransmission_packets_max=16 if is_small else 4_096,
                repair="multicast" if by_multicast else "unicast",
                linger_ms=LINGER_MS,
            ),
            filter=FilterConfig(
                repair=repair,
                shared=pick.choose(["mask", "residual"]),
                receiver=network,
                applications_max=32,
                kept_packets_max=16 if is_small else 4_096,
                kept_bytes_max=1_048_576,
                linger_ms=LINGER_MS,
            ),
            receiver=msgspec.structs.replace(network, nack="unicast") if repair == "filter" else network,
            link=_draw_link(pick, is_mild=is_mild),
            local=_draw_link(pick, is_mild=is_mild),
            disk=DiskFaults() if is_mild else DiskFaults(fsync_failure=pick.choose([0.0, 0.3])),
            fault_interval_ms=0 if is_mild else pick.choose([0, 60, 200]),
            is_mild=is_mild,
            is_authentic=pick.chance(0.4),
        )


def _draw_link(pick: SeededRandomness, *, is_mild: bool) -> LinkFaults:
    return LinkFaults(
        loss=pick.choose([0.0, 0.01, 0.05] if is_mild else [0.0, 0.02, 0.2]),
        duplicate=pick.choose([0.0, 0.1]),
        corrupt=pick.choose([0.0, 0.01] if is_mild else [0.0, 0.05]),
        reorder=pick.choose([0.0, 0.2]),
        reorder_delay_ns=pick.choose([1_000_000, 20_000_000]),
    )


class FilterSummary(PlantSummary, kw_only=True):
    messages_published: int
    messages_unwanted: int
    messages_delivered: int
    interest_changes: int
    datagrams_lost: int
    nacks_sent: int
    repairs_sent: int
    packets_reported_lost: int
    crashes: int
    packets_forged: int
    packets_resent: int
    repair: str
    is_mild: bool


class FilterPlant(StreamPlant[FilterPlantOptions, FilterSummary]):
    """Publishers, filters and applications on faulty networks, with checkers around them."""

    options_type = FilterPlantOptions
    summary_type = FilterSummary
    step_ns = 50 * NS_PER_MS

    def __init__(self, world: World, options: FilterPlantOptions) -> None:
        super().__init__(world, options)
        self.network = Network(world, options.link)
        self.locals = [Network(world, options.local, f"local/{n}") for n in range(options.filters)]
        self.groups = [parse_group(f"239.9.0.{n + 1}") for n in range(options.groups)]
        self.applications: list[ApplicationNode] = []
        self.publishers = [FilteredPublisherNode(self, n + 1) for n in range(options.publishers)]
        self.filters = [FilterNode(self, n) for n in range(options.filters)]
        for module in self.filters:
            for delivery in options.deliveries:
                self.applications.append(ApplicationNode(self, len(self.applications) + 1, module, delivery))
        self.application_names = {each.name: each for each in self.applications}
        self.nodes = [*self.filters, *self.applications, *self.publishers]
        self.stranger = Stranger(self) if options.is_authentic else None
        self.faults = FilterFaultSchedule(self)
        self.interest_changes = 0
        stories = FilteredStoryChecker()
        self.contents = FilteredContentChecker()
        self._collisions = CollisionChecker()
        self._interest_checkers: list[FilterChecker] = [
            stories,
            self.contents,
            FilteredBoundsChecker(),
            FilteredAccountsChecker(),
        ]
        self.checkers = [
            PaceChecker(options.receiver),
            *self._interest_checkers,
            CompletenessChecker(stories, self.contents, self.applications, excuses_last_words=True),
            SourceChecker(slack_ns=NS_PER_SECOND // 4),
            RequestChecker(),
            FilteredRequestChecker(),
        ]
        if options.is_mild:
            causes = (*MESSAGE_CAUSES, Cause.BEFORE_JOIN)
            self.checkers = [*self.checkers, LosslessChecker(causes, self._is_repairable)]

    def _is_repairable(self, stream: StreamKey) -> bool:
        """True if a node answers repair requests for the stream."""
        publishers = (each for each in self.publishers if each.publisher_id == stream.publisher_id)
        return self.options.filter.repair == "filter" or any(each.epoch() is not None for each in publishers)

    # Reports of nodes

    def wanted(self, viewer: Viewer, number: int, wants: Wants) -> None:
        self.interest_changes += 1
        for checker in self._interest_checkers:
            checker.wanted(viewer, number, wants, self.world.now_ns())

    def held(self, viewer: Viewer, number: int) -> None:
        for checker in self._interest_checkers:
            checker.held(viewer, number, self.world.now_ns())

    def forgot(self, viewer: Viewer, group: int) -> None:
        for checker in self._interest_checkers:
            checker.forgot(viewer, group)

    def forwarded(self, consumer: Opened, data: bytes) -> None:
        """A filter sends a packet; its gap is checked for the applications with their own copy."""
        packet = decode(data)
        application = self.application_at(consumer.address)
        is_own = application is not None and application.address() == consumer.address
        if application is not None and is_own and packet.gap and not packet.flags & PacketFlag.REPAIR:
            key = StreamKey(packet.publisher_id, packet.group)
            first, last = packet.sequence - packet.gap, packet.sequence - 1
            self.contents.removed(application.viewer(), key, packet.epoch, first, last, self.world.now_ns())

    def collided(self, name: str, collision: Collision) -> None:
        self._collisions.collided(name, collision)

    def application_at(self, address: Address) -> ApplicationNode | None:
        return self.application_names.get(address[0])

    # Results of checkers and of the stranger

    def receivers_of_streams(self) -> list[FilterNode | ApplicationNode]:
        return [*self.filters, *self.applications]

    def incoming_streams(self) -> Iterator[tuple[Viewer, IncomingStream]]:
        for node in self.filters:
            module = node.module()
            for stream in () if module is None else module.receiver.streams():
                yield node.viewer(), stream

    def associations(self) -> list[tuple[Address, Address]]:
        """Filters and their applications, in both directions."""
        pairs = [(each.module.address(), each.address()) for each in self.applications]
        return [*pairs, *((application, module) for module, application in pairs)]

    # The run

    def start(self) -> None:
        super().start()
        if self.stranger is not None:
            for local in self.locals:
                self.stranger.tap(local)

    def settle(self) -> None:
        """Continue, let the plant settle, and end the publishers. Of several publishers one is killed; the others
        send an end message, which is repeated for some applications."""
        self.is_healed = True
        self.run(2 * EXPIRY_MS * NS_PER_MS)
        for local in self.locals:
            local.faults = LinkFaults(loss=0.05)
        for application in self.applications:
            application.rest()
        for publisher in self.publishers:
            publisher.rest()
        self.run(2 * EXPIRY_MS * NS_PER_MS)
        for publisher in self.publishers:
            is_last = publisher is self.publishers[-1] and len(self.publishers) > 1
            publisher.end(is_killed=is_last)
        self.run(5 * EXPIRY_MS * NS_PER_MS)

    def counts(self) -> dict[str, Any]:
        statistics = [network.statistics for network in (self.network, *self.locals)]
        return self.stream_counts() | {
            "messages_unwanted": self.total("messages_unwanted"),
            "messages_delivered": self.contents.delivered,
            "interest_changes": self.interest_changes,
            "datagrams_lost": sum(each.lost + each.cut for each in statistics),
            "repair": self.options.filter.repair,
            "is_mild": self.options.is_mild,
        }


run_filter_seed = SeedRun(
    "filter",
    FilterPlant.draw,
    "every application received each matching message once and in order, or a report of the loss, and no other message",
)
