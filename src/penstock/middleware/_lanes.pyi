from typing_extensions import Buffer

from penstock.middleware._inorder import InOrder
from penstock.middleware._outgoing import OutgoingCursor
from penstock.net._udp import Inlet, Outlet
from penstock.shm.ring import RingReader, RingWriter
from penstock.wire import MessageBatch

class ReceivingLane:
    # `messages` is None until receive() has found something in order
    def __init__(self, inlet: Inlet, in_order: InOrder) -> None: ...
    @property
    def messages(self) -> MessageBatch: ...
    @property
    def now_ns(self) -> int: ...
    def receive(self, timeout_ns: int, spin: bool) -> bool: ...

class RingLane(ReceivingLane):
    def __init__(self, inlet: Inlet, in_order: InOrder, ring: RingReader, source: int) -> None: ...

class PublishingLane:
    def __init__(
        self, stream: OutgoingCursor, outlet: Outlet, destination: int, ring: RingWriter | None = None
    ) -> None: ...
    def publish(self, topic: str, payload: Buffer, model_id: int, model_version: int) -> int: ...
