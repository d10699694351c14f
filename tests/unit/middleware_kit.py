"""Helpers that drive the middleware's cores by hand."""

from collections.abc import Iterable
from typing import Any, TypeVar

from penstock.base import parse_group
from penstock.middleware import (
    Address,
    DatagramReceived,
    Deliver,
    OutgoingMessage,
    Publish,
    Publisher,
    PublisherConfig,
    Receiver,
    ReceiverConfig,
    StreamKey,
)
from penstock.wire import Packer, Packet, decode

GROUP = parse_group("239.1.1.1")
PUBLISHER_ID = 42
KEY = StreamKey(PUBLISHER_ID, GROUP)
SOURCE: Address = ("10.0.0.1", 4_000)
MS = 1_000_000

T = TypeVar("T")


class NoRandomness:
    """A random generator that always returns the lowest value, so that requests are sent without a random wait."""

    def below(self, limit: int) -> int:
        return 0


def packets(
    count: int, *, epoch: int = 1, first: int = 1, publisher_id: int = PUBLISHER_ID, flags: int = 0
) -> list[bytes]:
    """One message per packet; message n has the payload n."""
    packer = Packer(publisher_id, GROUP, epoch, first_sequence=first)
    made = []
    for number in range(first, first + count):
        packer.add("t", str(number).encode())
        packet = packer.flush(flags)
        assert packet is not None
        made.append(packet)
    return made


def receiver(**config: Any) -> Receiver:
    """A receiver that requests missing packets at its next Tick by default."""
    return Receiver(ReceiverConfig(**{"nack_delay_us": 0, **config}), NoRandomness())


def publisher(**config: Any) -> Publisher:
    return Publisher(PUBLISHER_ID, 1, PublisherConfig(**config))


def take(core: Receiver, data: Iterable[bytes], now_ns: int = 0, source: Address = SOURCE) -> list[Any]:
    return [answer for each in data for answer in core.handle(DatagramReceived(each, source), now_ns)]


def publish(core: Publisher, *payloads: bytes, now_ns: int = 0) -> list[Packet]:
    answers = core.handle(Publish(GROUP, [OutgoingMessage("t", payload) for payload in payloads]), now_ns)
    return [decode(answer.data) for answer in answers]  # type: ignore[union-attr]


def of(kind: type[T], answers: Iterable[Any]) -> list[T]:
    return [answer for answer in answers if isinstance(answer, kind)]


def contents(answers: Iterable[Any]) -> list[str]:
    return [bytes(message.payload).decode() for deliver in of(Deliver, answers) for message in deliver.messages]
