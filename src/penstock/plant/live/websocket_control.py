"""A WebSocket that is used as a control connection: the same messages, encoded by websocket_codec.py."""

import asyncio
from collections.abc import AsyncIterator

from penstock.base.errors import RemoteProtocolError
from penstock.engine.control import ControlMessage, RefusalCode, Refused
from penstock.net.live.websocket_driver import WebSocketConnection
from penstock.plant.core.websocket_codec import JSON, BinaryCodec, JsonCodec, Models
from penstock.plant.live._session_sender import Framing

REASON_SIZE_MAX = 256


class WebSocketControl:
    """Has the methods of net.control_driver.ControlConnection that a conversation with a consumer needs."""

    def __init__(self, connection: WebSocketConnection, models: Models) -> None:
        self._connection = connection
        is_json = connection.peer.subprotocol == JSON
        self._codec = JsonCodec(models) if is_json else BinaryCodec()
        self.framing = None if is_json else Framing.WEBSOCKET_MESSAGE
        """Framing of its events; None: the events need conversion."""

    @property
    def address(self) -> str:
        return self._connection.address

    @property
    def transport(self) -> asyncio.WriteTransport:
        return self._connection.transport

    @property
    def is_over(self) -> bool:
        return self._connection.is_over

    async def send(self, message: ControlMessage) -> None:
        await self._connection.send(self._codec.encode(message))

    async def receive(self) -> ControlMessage | None:
        message = await self._connection.receive()
        if message is None:
            return None
        try:
            return self._codec.decode(message)
        except RemoteProtocolError as error:
            await self.send(Refused(RefusalCode.PROTOCOL, str(error)[:REASON_SIZE_MAX]))
            await self._connection.close("not a control message")
            raise

    async def __aiter__(self) -> AsyncIterator[ControlMessage]:
        while (message := await self.receive()) is not None:
            yield message

    async def close(self, reason: str = "") -> None:
        await self._connection.close(reason)
