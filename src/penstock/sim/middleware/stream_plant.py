"""The base of plants with publishers of streams: what nodes report to the checkers, and the stranger on the network."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.base.ids import Group
from penstock.middleware import Address, OutgoingMessage, StreamKey
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.sim.datagram_node import DatagramNode, Viewer
from penstock.sim.middleware.checkers import StreamChecker
from penstock.sim.middleware.nodes import PublisherNode
from penstock.sim.middleware.stranger import Stranger
from penstock.sim.network import Network
from penstock.sim.plant import OptionsT, Plant, SummaryT
from penstock.sim.world import World


class StreamPlant(Plant[OptionsT, SummaryT]):
    """Publishers on a network, and nodes that receive their streams.

    If nodes have keys, there is a stranger without one.
    """

    checkers: Sequence[StreamChecker]
    network: Network
    groups: list[Group]
    publishers: Sequence[PublisherNode]
    stranger: Stranger | None

    def __init__(self, world: World, options: OptionsT) -> None:
        super().__init__(world, options)
        self.is_healed = False
        """True once the faults have ended."""

    # Reports of nodes

    def published(self, key: StreamKey, epoch: int, message: OutgoingMessage) -> None:
        for checker in self.checkers:
            checker.published(key, epoch, message, self.world.now_ns())

    def sent(self, key: StreamKey, epoch: int, data: bytes) -> None:
        for checker in self.checkers:
            checker.sent(key, epoch, data, self.world.now_ns())

    def said(self, viewer: Viewer, instruction: ReceiverInstruction) -> None:
        for checker in self.checkers:
            checker.said(viewer, instruction, self.world.now_ns())

    # For the checkers

    @abstractmethod
    def receivers_of_streams(self) -> Sequence[DatagramNode]:
        """All nodes that receive publishers' streams and request repairs."""

    @abstractmethod
    def incoming_streams(self) -> Iterable[tuple[Viewer, IncomingStream]]:
        """The streams that nodes receive from publishers directly."""

    # Results of the stranger

    @property
    def publisher_count(self) -> int:
        return len(self.publishers)

    def listeners(self) -> list[Address]:
        return [each.address() for each in self.receivers_of_streams()]

    def associations(self) -> list[tuple[Address, Address]]:
        """Nodes that know each other's addresses from a control connection: source and destination."""
        return []

    # The run

    def start(self) -> None:
        super().start()
        if self.stranger is not None:
            self.stranger.start()

    def total(self, counter: str) -> int:
        """A counter's sum over all nodes."""
        return sum(node.counters[counter] for node in self.nodes)

    def stream_counts(self) -> dict[str, Any]:
        """The counts that all plants with streams have."""
        return {
            "messages_published": self.total("messages_published"),
            "nacks_sent": self.total("nacks_sent"),
            "repairs_sent": self.total("repairs_sent"),
            "packets_reported_lost": self.total("packets_lost"),
            "crashes": self.faults.crashes,
            "packets_forged": self.stranger.forged if self.stranger is not None else 0,
            "packets_resent": self.stranger.resent if self.stranger is not None else 0,
        }
