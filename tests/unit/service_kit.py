"""A stream service without sockets: published packets, tokens, and a log of the subscribers' events."""

from collections.abc import Sequence

import numpy

from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Counters
from penstock.feed.config import ServiceConfig
from penstock.feed.core.service.events import (
    EndStream,
    MessageReceived,
    Published,
    SendMessage,
    ServiceEvent,
    ServiceInstruction,
)
from penstock.feed.core.service.published import PublishedBatch, Unpacker
from penstock.feed.core.service.service import ServiceIdentity, StreamService
from penstock.middleware import OutgoingMessage
from penstock.middleware.unicast import OpenStream, Packets, StreamRefused, SubscriberMessage
from penstock.security import Grant, PrivateKey, Token, TokenSigner, TokenVerifier
from penstock.wire import (
    Extension,
    Origin,
    OriginFlag,
    Packer,
    decode,
    decode_origin,
    encode_extensions,
    encode_origin,
)

START_NS = 1_700_000_000 * NS_PER_SECOND
KEY = PrivateKey(bytes(range(32)))
SIGNER = TokenSigner(KEY)


def token(
    *grants: Grant, client: str = "alice", subscription: str = "s-1", now_ns: int = START_NS, seconds: int = 3_600
) -> str:
    expires_ns = now_ns + seconds * NS_PER_SECOND
    return SIGNER.sign(Token("stream", client, subscription, grants, now_ns, expires_ns, 1))


def receive(pattern: str, delay_s: int = 0) -> Grant:
    return Grant(pattern, "receive", delay_s)


class PublishedStream:
    """Makes published packets: one message each, numbered as the adapter numbers them."""

    def __init__(self, *, term: int = 256) -> None:
        self._packer = Packer(7, 0xEF010101, 1)
        self._term = term
        self.next_number = 1

    def packet(self, topic: str, payload: bytes = b"") -> bytes:
        origin = Origin(1, self._term, 0, OriginFlag.SYNCHRONISED, 100 + self.next_number, self.next_number)
        self.next_number += 1
        extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
        assert self._packer.add(topic, payload, extensions=extensions) == []
        packet = self._packer.flush()
        assert packet is not None
        return packet

    def batch(self, *topics: str) -> PublishedBatch:
        return unpacked([self.packet(topic, topic.encode()) for topic in topics])


def unpacked(packets: Sequence[bytes]) -> PublishedBatch:
    data = numpy.frombuffer(b"".join(packets), numpy.uint8)
    sizes = numpy.array([len(each) for each in packets], numpy.uint32)
    offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
    (batch,) = Unpacker().unpack(data, offsets, sizes)
    return batch


class ServiceBench:
    """The core, and a log of its messages to each subscriber."""

    def __init__(
        self,
        config: ServiceConfig | None = None,
        contributions: tuple[str, ...] = (),
        models: Sequence[OutgoingMessage] = (),
    ) -> None:
        self.verifier = TokenVerifier([KEY.public])
        self.service = StreamService(
            ServiceIdentity("a-1", 7, (1,), contributions),
            self.verifier.verify,
            config or ServiceConfig(),
            Counters("x"),
            models,
        )
        self.now_ns = START_NS
        self.said: dict[int, list[SendMessage | EndStream]] = {}

    def handle(self, event: ServiceEvent) -> list[ServiceInstruction]:
        instructions = self.service.handle(event, self.now_ns)
        for each in instructions:
            if isinstance(each, SendMessage | EndStream):
                self.said.setdefault(each.subscriber, []).append(each)
        return instructions

    def say(self, subscriber: int, message: SubscriberMessage) -> list[ServiceInstruction]:
        return self.handle(MessageReceived(subscriber, message))

    def open(self, subscriber: int, text: str, *topics: str, **options: object) -> list[ServiceInstruction]:
        return self.say(subscriber, OpenStream(text, list(topics), **options))  # type: ignore[arg-type]

    def publish(self, batch: PublishedBatch) -> None:
        self.handle(Published(batch))

    def packets(self, subscriber: int) -> list[bytes]:
        messages = [each.message for each in self.said.get(subscriber, []) if isinstance(each, SendMessage)]
        return [packet for message in messages if isinstance(message, Packets) for packet in message.packets]

    def topics(self, subscriber: int) -> list[str]:
        return [message.topic for packet in self.packets(subscriber) for message in decode(packet)]

    def numbers(self, subscriber: int) -> list[int]:
        messages = [message for packet in self.packets(subscriber) for message in decode(packet)]
        return [decode_origin(message.extensions[Extension.ORIGIN]).message_sequence for message in messages]

    def refusal(self, subscriber: int) -> StreamRefused | None:
        ends = [each for each in self.said.get(subscriber, []) if isinstance(each, EndStream)]
        return ends[-1].refusal if ends else None
