"""Publishers, filter modules and applications drawn from a seed, the faults that hit them, and the verdict."""

from typing import Literal

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.errors import SimulationError
from penstock.base.ids import parse_group
from penstock.filter import FilterConfig
from penstock.filter.core.events import Opened, Wish
from penstock.middleware import Address, Collision, OutgoingMessage, PublisherConfig, ReceiverConfig, StreamKey
from penstock.middleware.core.events import ReceiverInstruction
from penstock.sim.disk import DiskFaults
from penstock.sim.filter.apps import ApplicationNode
from penstock.sim.filter.checkers import (
    FilterChecker,
    FilteredAccountsChecker,
    FilteredBoundsChecker,
    FilteredCompletenessChecker,
    FilteredContentChecker,
    FilteredLosslessChecker,
    FilteredRequestChecker,
    FilteredSourceChecker,
    FilteredStoryChecker,
)
from penstock.sim.filter.faults import FilterFaultSchedule
from penstock.sim.filter.nodes import FilteredPublisherNode, FilterNode
from penstock.sim.filter.wants import Wants
from penstock.sim.judge import SeedRun, work
from penstock.sim.listening import Viewer
from penstock.sim.middleware.conduct import PaceChecker
from penstock.sim.middleware.stranger import ADDRESS as STRANGER
from penstock.sim.middleware.stranger import Stranger
from penstock.sim.network import LinkFaults, Network
from penstock.sim.node import Node
from penstock.sim.randomness import SeededRandomness
from penstock.sim.world import World
from penstock.wire import PacketFlag, decode

STEP_NS = 50 * NS_PER_MS
KEEP_ALIVE_MS = 50
EXPIRY_MS = 400
LINGER_MS = 300


class FilterPlantOptions(msgspec.Struct, kw_only=True):
    """Everything that distinguishes one plant from another."""

    publishers: int = 2
    filters: int = 2
    deliveries: tuple[Wish, ...] = ("unicast", "ring", "shared")
    """One application for each, at every filter."""
    groups: int = 2
    messages_per_s: int = 200
    message_size_max: int = 200
    large_messages: float = 0.0
    change_interval_ms: int = 200
    """Mean time between an application's changes of interest."""
    publisher: PublisherConfig = PublisherConfig(keep_alive_ms=KEEP_ALIVE_MS, linger_ms=LINGER_MS)
    filter: FilterConfig = FilterConfig(receiver=ReceiverConfig(publisher_expiry_ms=EXPIRY_MS), linger_ms=LINGER_MS)
    receiver: ReceiverConfig = ReceiverConfig(publisher_expiry_ms=EXPIRY_MS)
    """Of applications."""
    link: LinkFaults = msgspec.field(default_factory=LinkFaults)
    local: LinkFaults = msgspec.field(default_factory=LinkFaults)
    """Between filters and applications."""
    disk: DiskFaults = msgspec.field(default_factory=DiskFaults)
    fault_interval_ms: int = 0
    is_mild: bool = True
    """Whether everything can be repaired."""
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
                flush_deadline_us=pick.choose([0, 0, 2_000]),
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


class FilterSummary(msgspec.Struct, kw_only=True):
    """What a run did, for people."""

    seed: int
    virtual_seconds: float
    events: int
    digest: str
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


class FilterPlant:
    """Publishers, filters and applications on faulty networks, with checkers around them."""

    def __init__(self, world: World, options: FilterPlantOptions) -> None:
        self.world = world
        self.options = options
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
        self.nodes: list[Node] = [*self.filters, *self.applications, *self.publishers]
        self.stranger = Stranger(self) if options.is_authentic else None
        self.faults = FilterFaultSchedule(self)
        self.is_healed = False  # faults have ended
        self.interest_changes = 0
        stories = FilteredStoryChecker()
        self.contents = FilteredContentChecker()
        self.checkers: list[FilterChecker] = [
            stories,
            self.contents,
            FilteredCompletenessChecker(stories, self.contents),
            FilteredBoundsChecker(),
            FilteredAccountsChecker(),
            FilteredSourceChecker(),
            FilteredRequestChecker(),
        ]
        self._pace = PaceChecker(options.receiver)
        if options.is_mild:
            self.checkers.append(FilteredLosslessChecker(self._is_repairable))

    def _is_repairable(self, stream: StreamKey) -> bool:
        """Whether there is somebody who answers requests for the stream's packets."""
        publishers = (each for each in self.publishers if each.publisher_id == stream.publisher_id)
        return self.options.filter.repair == "filter" or any(each.epoch() is not None for each in publishers)

    # What nodes report

    def published(self, key: StreamKey, epoch: int, message: OutgoingMessage) -> None:
        for checker in self.checkers:
            checker.published(key, epoch, message, self.world.now_ns())

    def sent(self, key: StreamKey, epoch: int, data: bytes) -> None:
        for checker in self.checkers:
            checker.sent(key, epoch, data, self.world.now_ns())

    def said(self, viewer: Viewer, instruction: ReceiverInstruction) -> None:
        self._pace.said(viewer, instruction, self.world.now_ns())
        for checker in self.checkers:
            checker.said(viewer, instruction, self.world.now_ns())

    def wanted(self, viewer: Viewer, number: int, wants: Wants) -> None:
        self.interest_changes += 1
        for checker in self.checkers:
            checker.wanted(viewer, number, wants, self.world.now_ns())

    def held(self, viewer: Viewer, number: int) -> None:
        for checker in self.checkers:
            checker.held(viewer, number, self.world.now_ns())

    def forgot(self, viewer: Viewer, group: int) -> None:
        for checker in self.checkers:
            checker.forgot(viewer, group)

    def forwarded(self, consumer: Opened, data: bytes) -> None:
        """A filter sends a packet; its gap is judged for the applications that get a copy of their own."""
        packet = decode(data)
        application = self.application_at(consumer.address)
        is_own = application is not None and application.address() == consumer.address
        if application is not None and is_own and packet.gap and not packet.flags & PacketFlag.REPAIR:
            key = StreamKey(packet.publisher_id, packet.group)
            first, last = packet.sequence - packet.gap, packet.sequence - 1
            self.contents.removed(application.viewer(), key, packet.epoch, first, last, self.world.now_ns())

    def collided(self, name: str, collision: Collision) -> None:
        if STRANGER not in (collision.owner, collision.intruder):
            raise SimulationError(f"{name} sees ghosts: {collision}")

    def application_at(self, address: Address) -> ApplicationNode | None:
        return self.application_names.get(address[0])

    # What the stranger finds

    @property
    def publisher_count(self) -> int:
        return self.options.publishers

    def listeners(self) -> list[Address]:
        return [each.address() for each in (*self.filters, *self.applications)]

    def associations(self) -> list[tuple[Address, Address]]:
        """Filters and their applications, in both directions."""
        pairs = [(each.module.address(), each.address()) for each in self.applications]
        return [*pairs, *((application, module) for module, application in pairs)]

    # The run

    def start(self) -> None:
        self.world.log.write(self.world.now_ns(), "plant", f"seed {self.world.seed} {self.options}")
        for node in self.nodes:
            node.start()
        self.faults.start()
        if self.stranger is not None:
            self.stranger.start()
            for local in self.locals:
                self.stranger.tap(local)

    def run(self, duration_ns: int) -> None:
        work(self.world, duration_ns, STEP_NS, self._look)

    def _look(self) -> None:
        for checker in self.checkers:
            checker.step_filters(self)

    def finish(self) -> None:
        """End the faults, work on, let the plant settle, end the publishers, and judge. Of several publishers one is
        killed; the others say goodbye, which some applications have to be told again."""
        self.faults.stop()
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
        for checker in self.checkers:
            checker.finish_filters(self)

    def summary(self) -> FilterSummary:
        def total(name: str) -> int:
            return sum(node.counters[name] for node in self.nodes)

        statistics = [network.statistics for network in (self.network, *self.locals)]
        return FilterSummary(
            seed=self.world.seed,
            virtual_seconds=self.world.now_ns() / NS_PER_SECOND,
            events=self.world.log.count,
            digest=self.world.log.digest(),
            messages_published=total("messages_published"),
            messages_unwanted=total("messages_unwanted"),
            messages_delivered=self.contents.delivered,
            interest_changes=self.interest_changes,
            datagrams_lost=sum(each.lost + each.cut for each in statistics),
            nacks_sent=total("nacks_sent"),
            repairs_sent=total("repairs_sent"),
            packets_reported_lost=total("packets_lost"),
            crashes=self.faults.crashes,
            packets_forged=self.stranger.forged if self.stranger is not None else 0,
            packets_resent=self.stranger.resent if self.stranger is not None else 0,
            repair=self.options.filter.repair,
            is_mild=self.options.is_mild,
        )


run_filter_seed = SeedRun(
    "filter", lambda world: FilterPlant(world, FilterPlantOptions.draw(world.randomness.fork("options")))
)
