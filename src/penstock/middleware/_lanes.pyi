from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Protocol

from typing_extensions import Buffer

from penstock.base.errors import SharedMemoryError
from penstock.middleware._inorder import InOrder
from penstock.middleware._outgoing import OutgoingCursor
from penstock.model import Message
from penstock.net._udp import Inlet, Outlet
from penstock.shm.ring import RingReader, RingWriter
from penstock.topics import GroupMap
from penstock.wire import MessageBatch, PacketMessage

class ReceivingLane:
    # `messages` is None until receive() has found something in order
    def __init__(self, inlet: Inlet, in_order: InOrder, *, gather_ns: int = 0) -> None: ...
    @property
    def messages(self) -> MessageBatch: ...
    @property
    def now_ns(self) -> int: ...
    def receive(self, timeout_ns: int, spin: bool) -> bool: ...
    def fill(self, timeout_ns: int, spin: bool) -> int: ...

class RingLane(ReceivingLane):
    def __init__(
        self,
        inlet: Inlet,
        in_order: InOrder,
        ring: RingReader,
        source: int,
        lost: Callable[[SharedMemoryError], None],
        *,
        gather_ns: int = 0,
    ) -> None: ...

class Waiting(Protocol):
    """What a MessageIterator asks a receiver."""

    # where to wait for messages, and how long at most; None when there is something else to be done
    def lane_to_wait_at(self) -> tuple[ReceivingLane | None, int]: ...
    # what there is beside messages that came in order
    def other_messages(self, lane: ReceivingLane | None) -> list[PacketMessage]: ...

class MessageIterator:
    def __init__(self, receiver: Waiting, spin: bool) -> None: ...
    def __iter__(self) -> Iterator[PacketMessage]: ...
    def __next__(self) -> PacketMessage: ...

class PublishingLane:
    def __init__(
        self, stream: OutgoingCursor, outlet: Outlet, destination: int, ring: RingWriter | None = None
    ) -> None: ...

class Turn:
    def __enter__(self) -> None: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

class LanePublisher:
    def __init__(self, group: int, groups: GroupMap | None) -> None: ...
    @property
    def turn(self) -> Turn: ...
    def open_lane(self, group: int, lane: PublishingLane) -> None: ...
    def has_lane(self, group: int) -> bool: ...
    def close_lanes(self) -> None: ...
    def publish(self, topic: str, payload: Buffer | Message, *, model_id: int = 0, model_version: int = 0) -> None: ...
    # for the subclass to say: what is done with the turn taken when the short way does not do
    def publish_by_core(
        self, group: int, topic: str, payload: Buffer | Message, model_id: int, model_version: int
    ) -> None: ...
    def note_unsent(self, count: int, error: int) -> None: ...
