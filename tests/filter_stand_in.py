"""A stand-in of a filter module: it sends the messages and packets that a test requests."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, Self

from penstock.filter.core.control import (
    CONNECTION,
    PROTOCOL,
    ControlMessage,
    Holds,
    Interests,
    Models,
    Position,
    Refused,
    Register,
    Registered,
    RenewToken,
    Restarted,
    RestartRing,
    Want,
)
from penstock.net.live.control_driver import ControlConnection, ControlServer
from penstock.net.live.handover import Handover
from penstock.net.live.loop_thread import LoopThread
from penstock.net.udp import Outlet, address_key, free_ports, host_socket
from penstock.shm.ring import RingWriter
from waiting import wait_until

RING = (1 << 16, 2_048)


class StandInFilter:
    """Accepts every interest. `answers` decides the answer to a message; None means the usual answer."""

    def __init__(self, port: int = 0, **registered: Any) -> None:
        self.port = port or free_ports(1)[0]
        self.heard: list[ControlMessage] = []
        self.answers: Callable[[ControlMessage], ControlMessage | None] = lambda message: None
        self.before_holds: list[Position] = []
        self._registered = registered
        self._socket = host_socket("127.0.0.1")
        self._outlet = Outlet(self._socket.fileno())
        self._connection: ControlConnection[ControlMessage] | None = None
        self._thread = LoopThread("stand-in-filter")
        self.ring: RingWriter | None = None
        self._handover: Handover | None = None
        self._lock = threading.Lock()
        self._start()

    @property
    def place(self) -> tuple[str, int]:
        return ("127.0.0.1", self.port)

    @property
    def address(self) -> tuple[str, int]:
        """The source address of its packets."""
        host, port = self._socket.getsockname()
        return host, port

    @property
    def application(self) -> Register:
        return next(each for each in reversed(self.heard) if isinstance(each, Register))

    @property
    def wanted(self) -> list[Interests]:
        return [each for message in self.heard if isinstance(message, Want) for each in message.add]

    def said(self, kind: type) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            if self.ring is not None:
                self.ring.write(packet)
            else:
                assert self._outlet.send(address_key(("127.0.0.1", self.application.port)), packet) == 0

    def send_to(self, port: int, *packets: bytes) -> None:
        for packet in packets:
            assert self._outlet.send(address_key(("127.0.0.1", port)), packet) == 0

    def requests(self) -> list[bytes]:
        """The datagrams that it received."""
        self._socket.setblocking(False)
        found = []
        while True:
            try:
                found.append(self._socket.recv(65_536))
            except BlockingIOError:
                return found

    def say(self, *messages: ControlMessage) -> None:
        wait_until(lambda: self._connection is not None, "an application")
        for message in messages:
            assert self._connection is not None
            self._thread.start(self._connection.send(message)).result(10)

    def hang_up(self) -> None:
        """End the connection and keep the listener open."""
        connection, self._connection = self._connection, None
        assert connection is not None
        self._thread.start(connection.close("for a test")).result(10)

    def close(self) -> None:
        self._thread.start(self._server.close()).result(10)
        self._thread.close()
        self._outlet.close()
        self._socket.close()
        if self._handover is not None:
            self._handover.close()
        if self.ring is not None:
            self.ring.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        if self._registered.get("delivery") == "ring":
            path = f"@penstock-test-{self.port}"
            self.ring = RingWriter.create(*RING)
            self._handover = Handover(path)
            self._handover.start()
            self._handover.offer("ring", self.ring.segment)
            self._registered |= {"path": path, "segment": "ring"}

        async def start() -> ControlServer:
            server = ControlServer(PROTOCOL, self._serve, node="filter", port=self.port, config=CONNECTION)
            await server.start()
            return server

        self._server = self._thread.start(start()).result(10)

    async def _serve(self, connection: ControlConnection[ControlMessage]) -> None:
        self._connection = connection
        async for message in connection:
            self.heard.append(message)
            answer = self.answers(message)
            if answer is None and isinstance(message, Want):
                for each in self.before_holds:
                    await connection.send(each)
            answer = answer or self._usual(message)
            await connection.send(answer)
            if isinstance(answer, Refused) and not answer.number:
                return
        await asyncio.sleep(0)

    def _usual(self, message: ControlMessage) -> ControlMessage:
        match message:
            case Register():
                host, port = self.address
                values = {"delivery": "unicast", "repair": "filter", **self._registered}
                return Registered(
                    filter="filter", application_id=message.application_id, host=host, port=port, **values
                )
            case Want() | Models() | RenewToken():
                return Holds(message.number)
            case RestartRing():
                assert self.ring is not None
                self.ring.restart()
                return Restarted(message.number)
            case _:
                raise AssertionError(f"an application does not say {message}")


def position(
    next_sequence: int = 1,
    *,
    publisher_id: int,
    group: int,
    epoch: int = 1,
    source: tuple[str, int] = ("", 0),
) -> Position:
    return Position(publisher_id, group, epoch, next_sequence, *source)
