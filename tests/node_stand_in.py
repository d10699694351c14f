"""A stand-in of a distribution node: it sends and writes what a test requests. One consumer at a time."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from penstock.engine.control import (
    CONNECTION,
    PROTOCOL,
    AskModel,
    ControlMessage,
    Events,
    Held,
    Login,
    ModelDocument,
    Modify,
    OpenRegion,
    Overrun,
    Refused,
    RenewToken,
    Restarted,
    Subscribe,
    Welcome,
)
from penstock.engine.core.kernel._event import ALL_ITEMS, LIVE_SIZE, NO_SLOT, EventFlag, EventKind, make_event
from penstock.model import Message, MessageModel, shipped
from penstock.net.live.control_driver import ControlConnection, ControlServer
from penstock.net.live.handover import Handover
from penstock.net.live.loop_thread import LoopThread
from penstock.net.udp import free_ports
from penstock.shm import RegionWriter, RingWriter
from waiting import wait_until

QUOTE = shipped("quote")

RING = (1 << 18, 4_096)


def quote(price: float, **values: Any) -> Message:
    return QUOTE.new(bid_price=price, symbol="T", **values)


class StandInNode:
    """Items are numbered as they are published. `answers` decides the answer to a message; None means the usual
    answer."""

    def __init__(self, port: int = 0, *, epoch: int = 7, ring: tuple[int, int] = RING, slots: int = 64) -> None:
        self.port = port or free_ports(1)[0]
        self.heard: list[ControlMessage] = []
        self.answers: Callable[[ControlMessage], ControlMessage | None] = lambda message: None
        self.restart: Callable[[Overrun], list[bytes]] | None = None
        """The first events of a restarted ring, besides definitions; refreshes by default."""
        self.epoch = epoch
        self.number = 0
        self.items: dict[str, int] = {}
        self.models: dict[str, MessageModel] = {}
        self.records: dict[str, tuple[int, bytes]] = {}
        self._ring_size, self._slots = ring, slots
        self._cls = "critical"
        self._writers: list[Any] = []
        self.ring: RingWriter | None = None
        self.notices: RingWriter | None = None
        self.regions: dict[int, RegionWriter] = {}
        self._connection: ControlConnection[ControlMessage] | None = None
        self._thread = LoopThread("stand-in-node")
        self._lock = threading.RLock()
        self._start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.port}"

    def said(self, kind: type) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]

    # Actions for tests

    def publish(self, topic: str, message: Message, *, merged: int = 1) -> None:
        with self._lock:
            is_new = topic not in self.items
            self.items.setdefault(topic, len(self.items))
            self.models[topic] = message.model
            self.number += 1
            self.records[topic] = self.records.get(topic, (0, b""))[0] + 1, bytes(message)
            if self._connection is not None:
                if is_new:
                    self.write(self.define(topic))
                self._update(topic, EventKind.UPDATE, merged=merged)

    def write(self, *blocks: bytes) -> None:
        """Send arbitrary bytes to the consumer."""
        for block in blocks:
            ring = self.notices if self._cls == "adaptive" else self.ring
            if ring is not None:
                ring.write(block)
            else:
                self._tell(Events(block))

    def define(self, topic: str) -> bytes:
        item, model = self.items[topic], self.models[topic]
        slot = item if self._cls == "adaptive" else NO_SLOT
        return make_event(
            EventKind.DEFINE, item=item, body=topic.encode(), model_id=model.id, model_version=model.version, slot=slot
        )

    def event(self, topic: str, kind: EventKind, *, flags: int = 0, merged: int = 1, **changes: Any) -> bytes:
        version, record = self.records[topic]
        content = {
            "item": self.items[topic], "body": record, "version": version, "number": self.number, "merged": merged,
            "flags": flags, "cls": 1 if self._cls == "critical" else 3, "model_id": self.models[topic].id,
            "model_version": self.models[topic].version,
        } | changes  # fmt: skip
        return make_event(kind, **content)  # type: ignore[arg-type]

    def receipt(self, first: int, last: int, cause: int, item: int = ALL_ITEMS) -> bytes:
        body = first.to_bytes(8, "little") + last.to_bytes(8, "little") + bytes([cause]) + bytes(7)
        return make_event(EventKind.RECEIPT, item=item, body=body)

    def remove(self, topic: str) -> None:
        self.write(make_event(EventKind.REMOVE, item=self.items[topic], number=self.number))

    def cut(self) -> None:
        """End the connection, as if the node had died; it accepts connections again at once."""
        self._run(self._end())
        wait_until(lambda: self._connection is None, "the end of the connection")

    def close(self) -> None:
        self._run(self._end())
        self._run(self._server.close())
        self._thread.close()
        self._handover.close()
        for each in self._writers:
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The protocol

    def _start(self) -> None:
        self._path = f"@penstock-stand-in-{self.port}"
        self._handover = Handover(self._path)
        self._handover.start()

        async def start() -> ControlServer:
            server = ControlServer(PROTOCOL, self._serve, node="stand-in", port=self.port, config=CONNECTION)
            await server.start()
            return server

        self._server = self._run(start())

    def _run(self, work: Any) -> Any:
        return self._thread.start(work).result(10)

    async def _end(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _tell(self, message: ControlMessage) -> None:
        connection = self._connection
        if connection is not None:
            self._thread.start(connection.send(message))

    async def _serve(self, connection: ControlConnection[ControlMessage]) -> None:
        try:
            async for said in connection:
                self.heard.append(said)
                if (other := self.answers(said)) is not None:
                    await connection.send(other)
                    if isinstance(other, Refused) and not other.number:
                        return
                    continue
                await self._answer(connection, said)
        finally:
            self._connection = None

    async def _answer(self, connection: ControlConnection[ControlMessage], said: ControlMessage) -> None:
        match said:
            case Login():
                self._connection = connection
                await connection.send(await asyncio.to_thread(self._welcome, said))
            case Subscribe():
                with self._lock:
                    self._cls = said.cls
                    await connection.send(Held(said.number, said.per_second))
                    if said.cls == "adaptive":
                        await self._open_regions(connection)
                    if not said.after:
                        self._refresh(0)
                    body = said.number.to_bytes(LIVE_SIZE, "little")
                    self.write(make_event(EventKind.LIVE, item=ALL_ITEMS, body=body))
            case Overrun():
                with self._lock:
                    ring = self.notices if said.ring == "notices" else self.ring
                    assert ring is not None
                    ring.restart()
                    self.write(*map(self.define, self.items))
                    if self.restart is not None:
                        self.write(*self.restart(said))
                    elif said.ring == "events":
                        self._refresh(int(EventFlag.AFTER_OVERRUN))
                await connection.send(Restarted(said.number))
            case Modify():
                await connection.send(Held(said.number, said.per_second))
            case RenewToken():
                await connection.send(Held(said.number))
            case AskModel():
                (document,) = {model.text for model in self.models.values() if model.id == said.id} or {""}
                await connection.send(
                    ModelDocument(said.number, document) if document else Refused("model", "unknown", said.number)
                )

    def _welcome(self, login: Login) -> Welcome:
        with self._lock:
            if login.transport != "local":
                self.ring = self.notices = None
                return Welcome("stand-in", self.epoch, 1, ["critical", "metered"])
            self.ring, self.notices = (RingWriter.create(*self._ring_size) for _ in range(2))
            self.regions = {}
            self._writers += [self.ring, self.notices]
            self._handover.offer("ring", self.ring.segment)
            self._handover.offer("notices", self.notices.segment)
            return Welcome(
                "stand-in", self.epoch, 1, ["critical", "adaptive"], path=self._path, ring="ring", notices="notices"
            )

    async def _open_regions(self, connection: ControlConnection[ControlMessage]) -> None:
        for model in {model.id: model for model in [QUOTE, *self.models.values()]}.values():
            writer = self.regions[model.id] = RegionWriter.create(self._slots, [part.size for part in model.parts])
            self._writers.append(writer)
            self._handover.offer(f"region-{model.id}", writer.segment)
            await connection.send(
                OpenRegion(model.id, model.version, f"region-{model.id}", "", model.record_size, self._slots)
            )

    def _refresh(self, flags: int) -> None:
        for topic in self.items:
            if not flags:
                self.write(self.define(topic))
            self._update(topic, EventKind.REFRESH, flags=flags)

    def _update(self, topic: str, kind: EventKind, **changes: Any) -> None:
        if self._cls != "adaptive":
            self.write(self.event(topic, kind, **changes))
            return
        model = self.models[topic]
        self.regions[model.id].write(self.items[topic], self.records[topic][1])
        assert self.notices is not None
        self.notices.write(
            make_event(EventKind.NOTICE, item=self.items[topic], model_id=model.id, slot=self.items[topic])
        )
