from penstock.capture.core.message_reader import Readable
from penstock.capture.live._reading import BatchReader
from penstock.client._topic_gate import TopicGate
from penstock.middleware import Merger
from penstock.middleware.core.events import MergerInstruction
from penstock.middleware.live.merging_receiver import StreamSource

class Pipeline:
    def __init__(self, merger: Merger, gate: TopicGate, reader: BatchReader) -> None: ...
    @property
    def left(self) -> list[MergerInstruction]: ...
    def receive(self, source: StreamSource, timeout: float) -> list[Readable] | None: ...
