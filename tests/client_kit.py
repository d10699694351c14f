"""Stand-ins of feed adapters for clients: they publish numbered messages, and serve streams over TCP under the test's
control."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy

from admin_kit import registration
from penstock.middleware import OutgoingMessage, PublisherConfig
from penstock.middleware.core.batch import Packable
from penstock.middleware.live import MulticastPublisher
from penstock.middleware.unicast import CONNECTION, PROTOCOL, UnicastMessage
from penstock.model import MessageModel
from penstock.model.library import shipped
from penstock.net.live.control_driver import ControlConnection, ControlServer
from penstock.net.udp import Channel
from penstock.security import Sealer
from penstock.security.core.authentication import scope_of
from penstock.security.core.brokering import AdapterRegistration
from penstock.security.live.client import AdminClient
from penstock.wire import (
    MESSAGE_DTYPE,
    Extension,
    MessageFlag,
    Origin,
    OriginFlag,
    Packer,
    encode_extensions,
    encode_origin,
    encode_seal,
)

QUOTE = shipped("quote")
TERM = 1 << 14
STREAM_ID = 1


class Originated:
    """Messages with an ORIGIN, for MulticastPublisher.publish_batch(): number n is about quote n."""

    def __init__(
        self,
        topic: str,
        numbers: Sequence[int],
        *,
        term: int = TERM,
        flags: int = int(OriginFlag.SYNCHRONISED),
        model: MessageModel = QUOTE,
        sealer: Sealer | None = None,
        **values: Any,
    ) -> None:
        """Further values are fields of the message."""
        self.topic_data = topic.encode()
        parts: list[bytes] = []
        self.rows = numpy.zeros(len(numbers), MESSAGE_DTYPE)
        at = 0
        for row, number in zip(self.rows, numbers, strict=True):
            extensions, payload, message_flags = originated(topic, number, term, flags, model, sealer, **values)
            row["topic_size"] = len(self.topic_data)
            row["extensions_offset"], row["extensions_size"] = at, len(extensions)
            row["payload_offset"], row["payload_size"] = at + len(extensions), len(payload)
            row["model_id"], row["model_version"], row["flags"] = model.id, model.version, message_flags
            parts += [extensions, payload, bytes(-len(payload) % 8)]
            at += len(extensions) + len(payload) + -len(payload) % 8
        self.payloads = numpy.frombuffer(b"".join(parts), numpy.uint8)

    def __len__(self) -> int:
        return len(self.rows)


def originated(
    topic: str, number: int, term: int, flags: int, model: MessageModel, sealer: Sealer | None, **values: Any
) -> tuple[bytes, bytes, int]:
    """The extensions, the payload and the flags of message `number`."""
    origin = Origin(STREAM_ID, term, 0, flags, number, number)
    payload = content(number, model, **values)
    bodies = {int(Extension.ORIGIN): encode_origin(origin)}
    if sealer is None:
        return encode_extensions(bodies), payload, 0
    sealed = sealer.seal(payload, topic=topic.encode(), model_id=model.id, model_version=model.version, origin=origin)
    bodies[int(Extension.SEAL)] = encode_seal(sealed.seal)
    return encode_extensions(bodies), sealed.payload, int(MessageFlag.SEALED)


def content(number: int, model: MessageModel = QUOTE, **values: Any) -> bytes:
    return bytes(model.new(**({"bid_size": number} if model is QUOTE else {}), **values))


def packets(
    topic: str,
    numbers: Sequence[int],
    *,
    publisher_id: int,
    first: int = 1,
    flags: int = int(OriginFlag.SYNCHRONISED),
    term: int = TERM,
) -> list[bytes]:
    """The same as packets of a stream service: one message each."""
    packer = Packer(publisher_id, 0, 1, first_sequence=first)
    made = []
    for number in numbers:
        extensions, payload, _ = originated(topic, number, term, flags, QUOTE, None)
        packer.add(topic, payload, model_id=QUOTE.id, model_version=QUOTE.version, extensions=extensions)
        made.append(packer.flush() or b"")
    return made


@contextmanager
def adapter_on(channel: Channel, publisher_id: int, feed: AdminClient | None = None) -> Iterator[MulticastPublisher]:
    """An adapter's publisher, with the keys of the adapter that `feed` registered; otherwise without keys."""
    config = PublisherConfig(linger_ms=1)
    if feed is None:
        publisher = MulticastPublisher(channel, publisher_id=publisher_id, epoch=1, config=config)
    else:
        publisher = AuthenticPublisher(channel, publisher_id, config, feed)
    with publisher:
        yield publisher


class AuthenticPublisher(MulticastPublisher):
    """Requests keys from the server before its first message, by registering once more."""

    def __init__(self, channel: Channel, publisher_id: int, config: PublisherConfig, feed: AdminClient) -> None:
        super().__init__(channel, publisher_id=publisher_id, epoch=1, config=config, keys=())
        self._feed: AdminClient | None = feed
        known = REGISTRATIONS.get(publisher_id)
        if known is not None and (known.group, known.port) == (channel.group, channel.port):
            self._ask()  # now, while the server answers

    def publish(self, *arguments: Any, **options: Any) -> None:
        self._ask()
        super().publish(*arguments, **options)

    def publish_messages(self, messages: Sequence[OutgoingMessage]) -> None:
        self._ask()
        super().publish_messages(messages)

    def publish_batch(self, batch: Packable) -> None:
        self._ask()
        super().publish_batch(batch)

    def _ask(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            told = feed.register(REGISTRATIONS[self.publisher_id]).authentication
            assert told is not None
            scope = scope_of(told)
            self.authenticate(scope.keys, scope.active_key_id)


REGISTRATIONS: dict[int, AdapterRegistration] = {}
"""The last registration here for each publisher."""


def registered_on(channel: Channel, publisher_id: int, index: int = 0, **values: Any) -> AdapterRegistration:
    made = REGISTRATIONS[publisher_id] = registration(
        adapter=f"adapter-{index}",
        index=index,
        publisher_id=publisher_id,
        group=channel.group,
        port=channel.port,
        interface=channel.interface,
        **values,
    )
    return made


class ThreadedService:
    """A coroutine in its own event loop and thread; it sets `_ready`, and ends when `_stop` is set."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()))

    async def _run(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()


class Service(ThreadedService):
    """A stream service whose behaviour is a coroutine; real connections."""

    def __init__(self, serve: Callable[[ControlConnection[UnicastMessage]], Any]) -> None:
        super().__init__()
        self._serve = serve
        self.port = 0

    async def _run(self) -> None:
        async with ControlServer(PROTOCOL, self._serve, node="adapter", config=CONNECTION) as server:
            self.port = server.port
            self._ready.set()
            await self._stop.wait()
