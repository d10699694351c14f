"""Publishers of a simulated tree."""

from typing import TYPE_CHECKING, Any

from penstock.sim.tree.apps import Application, Session
from penstock.sim.tree.market import MODEL
from penstock.tree.core.control import Login, Published, Refused, Welcome
from penstock.tree.core.kernel._frame import ACKNOWLEDGE, KIND_PUBLISHED, encode_block
from penstock.tree.core.kernel._number import encode_published

if TYPE_CHECKING:
    from penstock.sim.tree.plant import TreePlant

WINDOW = 64
"""Messages of a publisher that are not acknowledged yet."""
MODEL_OF = {"model_id": MODEL.id, "model_version": MODEL.version}

HURRY_EVERY = 3
"""A block whose last message has a multiple of this number asks the root for an acknowledgement at once."""


class Publisher(Application):
    """Publishes messages at the root, and keeps all messages, to repeat those that a root has lost."""

    def __init__(self, plant: "TreePlant", name: str, places: list[str], publisher_id: int) -> None:
        super().__init__(plant, name, places)
        self.publisher_id = publisher_id
        self.messages: list[tuple[str, str, bytes]] = []
        """Stream, topic, payload; number n is at n - 1."""
        self.acknowledged = 0
        self._sent = 0
        self._numbers: dict[str, int] = {}

    def login(self, home: str) -> Login:
        return Login(self.name, "publisher", publisher_id=self.publisher_id)

    def publish(self, stream: str, topic: str, level: int, padding: int = 0) -> None:
        payload = bytes(MODEL.new(publisher=self.publisher_id, number=len(self.messages) + 1, level=level))
        payload += bytes(padding)
        self.messages.append((stream, topic, payload))
        self.plant.published(self)
        self._go_on()

    def _go_on(self) -> None:
        session = self.session
        if session is None or not session.is_welcome:
            return
        packets = []
        while self._sent < min(len(self.messages), self.acknowledged + WINDOW):
            stream, topic, payload = self.messages[self._sent]
            self._sent += 1
            number = self._numbers.get(stream, 0)
            packets.append(
                encode_published(
                    self.publisher_id,
                    self._sent,
                    number,
                    topic,
                    payload,
                    model_id=MODEL.id,
                    model_version=MODEL.version,
                )
            )
        if packets:
            leg = ACKNOWLEDGE if self._sent % HURRY_EVERY == 0 else 0
            session.out += encode_block(b"".join(packets), kind=KIND_PUBLISHED, leg=leg)
            session.end.pump()

    def told(self, session: Session, message: Any) -> None:
        match message:
            case Welcome():
                session.is_welcome = True
                self._numbers = {info.name: info.number for info in message.streams}
                self.acknowledged = self._sent = message.published_through
                self._go_on()
            case Published():
                self.acknowledged = max(self.acknowledged, message.through)
                self._go_on()
            case Refused():
                self.log(f"refused: {message}")

    def packet(self, session: Session, leg: int, packet: bytes) -> None:
        """Ignore packets, which belong to the infostream."""
