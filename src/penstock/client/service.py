"""Client side of the adapters' stream services: connections with asyncio."""

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from penstock.base.errors import PenstockError, RefusedError, RemoteProtocolError
from penstock.base.limits import MODEL_IN_BAND_SIZE_MAX
from penstock.middleware.core.reassembly import BrokenMessage, Reassembler
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    AdapterMessage,
    ImageBegin,
    ImageEnd,
    OpenStream,
    Packets,
    Position,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.net.secret import Secret
from penstock.security.core.brokering import BrokeredStream, StreamAddress
from penstock.wire import PacketMessage, decode


class Protection(msgspec.Struct, frozen=True):
    """Protection of connections to other hosts."""

    tls: ssl.SSLContext | None = None
    secret: Secret | None = None


class Image(msgspec.Struct, frozen=True):
    """The current state of the requested topics, and the position of each source stream at that time."""

    messages: list[PacketMessage]
    positions: list[Position]
    address: StreamAddress
    """The adapter that sent the image."""


def place(address: StreamAddress) -> StreamAddress:
    """Return the adapter's address without its role, because a connection outlives a takeover."""
    return msgspec.structs.replace(address, role="backup")


def places(addresses: Sequence[StreamAddress]) -> list[StreamAddress]:
    return [place(each) for each in addresses]


def has_service(stream: BrokeredStream) -> bool:
    """True for the stream of a feed. The stream of a client's publisher comes by multicast only, without images."""
    return all(each.service_port for each in stream.addresses)


@contextlib.asynccontextmanager
async def opened_stream(
    address: StreamAddress, protection: Protection, node: str, request: OpenStream
) -> AsyncIterator[tuple[ControlConnection[UnicastMessage], StreamOpened]]:
    """Open a stream of an adapter's service."""
    connection = await connect_control(
        PROTOCOL,
        address.service_host,
        address.service_port,
        node=node,
        tls=protection.tls,
        secret=protection.secret,
        config=CONNECTION,
    )
    async with connection:
        await connection.send(request)
        opened = await connection.receive()
        if isinstance(opened, StreamRefused):
            raise refusal(opened)
        if not isinstance(opened, StreamOpened):
            raise RemoteProtocolError("the adapter did not open the stream", where=address.adapter)
        yield connection, opened


async def fetch_image(
    addresses: Sequence[StreamAddress],
    protection: Protection,
    node: str,
    token: str,
    topics: list[str],
    messages_max: int,
) -> Image:
    """Fetch an image from the first adapter that sends one."""
    failure: PenstockError | None = None
    for address in addresses:
        try:
            request = OpenStream(token, topics, live=False, image=True, delay_s=0)
            async with opened_stream(address, protection, node, request) as (connection, _):
                return await _read_image(connection, address, messages_max)
        except PenstockError as error:
            failure = error
    raise failure or RemoteProtocolError("no adapter sent an image")


async def _read_image(
    connection: ControlConnection[UnicastMessage], address: StreamAddress, messages_max: int
) -> Image:
    """Receive an image, with the adapter's models, which precede it."""
    messages: list[PacketMessage] = []
    reassembler = Reassembler(MODEL_IN_BAND_SIZE_MAX)
    async for said in connection:
        match said:
            case Packets():
                for data in said.packets:
                    messages.extend(_whole_messages(reassembler, data))
                if len(messages) > messages_max:
                    raise RemoteProtocolError(f"the image exceeds the limit of {messages_max} messages")
            case ImageEnd():
                return Image(messages, said.positions, address)
            case StreamRefused():
                raise refusal(said)
            case ImageBegin():
                messages = [message for message in messages if message.topic == MODEL_TOPIC]
            case _:
                raise RemoteProtocolError(f"unexpected {type(said).__name__} in an image")
    raise RemoteProtocolError("the image is truncated")


def _whole_messages(reassembler: Reassembler, data: bytes) -> Iterator[PacketMessage]:
    for each in reassembler.messages(decode(data)):
        if isinstance(each, BrokenMessage):
            raise RemoteProtocolError(f"a message on {each.topic} is incomplete: {each.cause}")
        yield each


def refusal(said: StreamRefused) -> RefusedError:
    return RefusedError(f"the adapter refused the stream: {said.reason}", peer_code=said.code)


__all__ = ["AdapterMessage", "Image", "Protection", "fetch_image", "opened_stream", "place", "refusal"]
