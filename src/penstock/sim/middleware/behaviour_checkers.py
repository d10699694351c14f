"""Checkers of the behaviour of nodes during a run.

BoundsChecker        buffers stay within their limits
LosslessChecker      with few faults of the network and large buffers, every packet is repaired
PaceChecker          no receiver requests the same packet again before the answer could have arrived
PunctualityChecker   messages are sent in time, and the silence of a stream in use is bounded
CollisionChecker     two publishers with one id are reported only if there are two
SourceChecker        a stranger that repeats recorded packets does not stay the source of a stream
RequestChecker       with keys, every request is answered at most once
"""

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.counters import Cause
from penstock.middleware import (
    Collision,
    LossReceipt,
    Multicast,
    OutgoingMessage,
    ReceiverConfig,
    StreamKey,
    Unicast,
)
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.sim.checker import Checker
from penstock.sim.datagram_node import Viewer
from penstock.sim.middleware.checkers import MESSAGE_CAUSES, StreamChecker
from penstock.sim.middleware.stranger import ADDRESS as STRANGER
from penstock.wire import MessageFlag, decode
from penstock.wire._authentication import strip_trailer

if TYPE_CHECKING:
    from penstock.sim.middleware.plant import MiddlewarePlant
    from penstock.sim.middleware.stream_plant import StreamPlant

STEP_NS = 100 * NS_PER_MS
"""Virtual time between two calls of step()."""


class BoundsChecker(StreamChecker):
    """Checks the sizes of buffers during the run."""

    def step(self, plant: "MiddlewarePlant") -> None:
        publishing, receiving = plant.options.publisher, plant.options.receiver
        for publisher in plant.publishers:
            for kept in publisher.kept():
                is_bounded = (
                    len(kept) <= publishing.retransmission_packets_max
                    and kept.bytes_kept <= publishing.retransmission_bytes_max
                )
                self.require(is_bounded, f"{publisher.name} keeps {len(kept)} packets, {kept.bytes_kept} bytes")
        for receiver in plant.receivers:
            for stream in receiver.streams():
                require_window(self, receiver.name, stream, receiving)


def require_window(checker: Checker, name: str, stream: IncomingStream, config: ReceiverConfig) -> None:
    """A receiver holds no more of a stream than its configuration permits."""
    is_bounded = stream.window_packets <= config.window_packets_max and stream.window_bytes <= config.window_bytes_max
    checker.require(is_bounded, f"{name} holds {stream.window_packets} packets, {stream.window_bytes} bytes")


class LosslessChecker(StreamChecker):
    """No receipt for lost packets is acceptable, except for the causes in `excused`, and for streams that no node can
    repair any more, according to `is_repairable`.
    """

    def __init__(
        self,
        excused: tuple[Cause, ...] = MESSAGE_CAUSES,
        is_repairable: Callable[[StreamKey], bool] = lambda stream: True,
    ) -> None:
        self._excused = excused
        self._is_repairable = is_repairable

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        if isinstance(instruction, LossReceipt):
            is_acceptable = instruction.cause in self._excused or not self._is_repairable(instruction.stream)
            self.require(is_acceptable, f"{viewer} reports an avoidable loss: {instruction}")


class PaceChecker(StreamChecker):
    """Records when each receiver requested each packet."""

    def __init__(self, receiving: ReceiverConfig) -> None:
        # packets that are due soon are included in an earlier request
        self._pause_ns = receiving.nack_retry_ms * NS_PER_MS - receiving.nack_delay_us * 1_000
        self._asked_ns: dict[tuple[Viewer, int, int, int, int], int] = {}

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        if not isinstance(instruction, Multicast | Unicast):
            return
        request = decode(strip_trailer(instruction.data))
        for first, last in request.ranges:
            for sequence in range(first, last + 1):
                key = (viewer, request.publisher_id, request.group, request.epoch, sequence)
                pause_ns = now_ns - self._asked_ns.get(key, -NS_PER_SECOND)
                self.require(pause_ns >= self._pause_ns, f"{viewer} asks for {sequence} again after {pause_ns} ns")
                self._asked_ns[key] = now_ns

    def step(self, plant: "MiddlewarePlant") -> None:
        horizon_ns = plant.world.now_ns() - self._pause_ns
        self._asked_ns = {key: asked_ns for key, asked_ns in self._asked_ns.items() if asked_ns > horizon_ns}


class PunctualityChecker(StreamChecker):
    """Records when messages were published and packets sent."""

    def __init__(self) -> None:
        self._unsent_ns: dict[tuple[StreamKey, int], list[int]] = defaultdict(list)
        self._sent_ns: dict[tuple[StreamKey, int], int] = {}

    def published(self, key: StreamKey, epoch: int, message: OutgoingMessage, now_ns: int) -> None:
        self._unsent_ns[key, epoch].append(now_ns)

    def sent(self, key: StreamKey, epoch: int, data: bytes, now_ns: int) -> None:
        self._sent_ns[key, epoch] = now_ns
        complete = sum(not message.flags & MessageFlag.MORE for message in decode(data))
        del self._unsent_ns[key, epoch][:complete]

    def step(self, plant: "MiddlewarePlant") -> None:
        now_ns = plant.world.now_ns()
        silence_max_ns = plant.options.publisher.keep_alive_ms * NS_PER_MS + STEP_NS
        wait_max_ns = plant.options.publisher.linger_us * 1_000 + STEP_NS
        for publisher in plant.publishers:
            epoch = publisher.epoch()
            if epoch is None or publisher.farewells or now_ns - publisher.stalled_until_ns < silence_max_ns:
                continue
            for group in plant.groups:
                stream = (StreamKey(publisher.publisher_id, group), epoch)
                silence_ns = now_ns - self._sent_ns.get(stream, now_ns)
                self.require(silence_ns <= silence_max_ns, f"{publisher.name} was silent for {silence_ns} ns")
                wait_ns = now_ns - min(self._unsent_ns[stream], default=now_ns)
                self.require(wait_ns <= wait_max_ns, f"{publisher.name} let a message wait for {wait_ns} ns")


class CollisionChecker(StreamChecker):
    """Publishers of the plant have distinct ids; only a stranger may be reported."""

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        if isinstance(instruction, Collision):
            self.collided(viewer.name, instruction)

    def collided(self, name: str, collision: Collision) -> None:
        """A node reports a collision."""
        is_true = STRANGER in (collision.owner, collision.intruder)
        self.require(is_true, f"{name} reports a collision that did not happen: {collision}")


class SourceChecker(StreamChecker):
    """Remembers since when the stranger's address has been the source of a stream. On a healthy network the next packet
    of the publisher, a keep-alive at the latest, makes the publisher the source again."""

    def __init__(self, slack_ns: int = NS_PER_SECOND) -> None:
        """`slack_ns`: tolerated time beyond a keep-alive."""
        self._slack_ns = slack_ns
        self._since_ns: dict[tuple[Viewer, StreamKey], int] = {}

    def step(self, plant: "StreamPlant[Any, Any]") -> None:
        now_ns = plant.world.now_ns()
        epochs = {publisher.publisher_id: publisher.epoch() for publisher in plant.publishers}
        found = [
            (viewer, stream.key)
            for viewer, stream in plant.incoming_streams()
            if stream.source == STRANGER and plant.is_healed and stream.epoch == epochs.get(stream.key.publisher_id)
        ]
        self._since_ns = {each: self._since_ns.get(each, now_ns) for each in found}
        limit_ns = plant.options.publisher.keep_alive_ms * NS_PER_MS + self._slack_ns
        for (viewer, key), since_ns in self._since_ns.items():
            self.require(now_ns - since_ns <= limit_ns, f"{viewer} takes the stranger for the source of {key}")


class RequestChecker(StreamChecker):
    """Compares the requests that publishers answered with those that receivers sent: neither forged requests, nor
    recorded requests, nor copies that the network made, are answered."""

    def step(self, plant: "StreamPlant[Any, Any]") -> None:
        if plant.stranger is not None:
            answered = sum(publisher.counters["nacks_received"] for publisher in plant.publishers)
            sent = sum(receiver.counters["nacks_sent"] for receiver in plant.receivers_of_streams())
            self.require(answered <= sent, f"{answered} requests were answered, but only {sent} were sent")
