"""Accounts of the streams that a module carries: every packet number is accounted for.

Counts are kept only if they are read (FilterModule with `keeps_books`). Numbers add up: in a stream, each number from
the first to the next one was received, or accounted for by the gap of a publisher's packet, or lost; for a consumer,
each number was sent, or accounted for by the gap of a sent packet, or lost.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from penstock.base.counters import Cause
from penstock.filter.core.consumers import Consumer
from penstock.filter.core.forwarded_stream import ForwardedStream
from penstock.middleware import StreamKey


class IntakeCounts(msgspec.Struct, frozen=True):
    """The received packets of one stream in one epoch."""

    stream: StreamKey
    epoch: int
    first_packet: int
    next_packet: int
    packets: int
    """Packets received in order."""

    left_out: int
    """Numbers that gaps of the received packets account for."""

    lost: tuple[tuple[Cause, int], ...]
    """Numbers that never arrived; the applications request those with cause UNREPAIRED."""

    repaired: int
    """Packets received after a repair request."""

    nacks: int
    messages: int
    unwanted: int
    """Messages that matched for no consumer."""

    is_closed: bool

    @property
    def adds_up(self) -> bool:
        lost = sum(count for _, count in self.lost)
        return self.next_packet - self.first_packet == self.packets + self.left_out + lost


class Sent(msgspec.Struct, frozen=True):
    """The packets of one stream in one epoch that a consumer was sent since it began to listen."""

    stream: StreamKey
    epoch: int
    applications: tuple[str, ...]
    """The application, or the applications that share the copy."""

    delivery: str
    first_packet: int
    next_packet: int
    packets: int
    left_out: int
    lost: int
    late: int
    """Packets sent after later ones; their numbers had been reported lost."""

    offered: int
    """Messages of the stream in this time."""

    messages: int
    """Messages sent to the consumer."""

    nacks: int
    """Repair requests from the consumer's applications."""

    repairs: int
    """Packets sent again for them."""

    is_closed: bool

    @property
    def adds_up(self) -> bool:
        return self.next_packet - self.first_packet == self.packets + self.left_out + self.lost


Entry: TypeAlias = IntakeCounts | Sent


class Ledger:
    """Keeps closed accounts until take()."""

    def __init__(self) -> None:
        self._closed: list[Entry] = []

    def open(self, stream: ForwardedStream) -> None:
        stream.account.keep_books()

    def close_consumer(self, stream: ForwardedStream, consumer: Consumer) -> None:
        """The consumer stops listening to the stream."""
        if stream.account.expected_by(consumer.number):
            self._closed.append(_sent(stream, consumer, is_closed=True))

    def close(self, stream: ForwardedStream, consumers: Iterable[Consumer]) -> None:
        """The stream is about to be removed."""
        for consumer in consumers:
            self.close_consumer(stream, consumer)
        self._closed.append(_intake(stream, is_closed=True))

    def take(self, streams: Iterable[ForwardedStream], consumers: Iterable[Consumer]) -> list[Entry]:
        """Return the accounts closed since the last call, and all open ones."""
        entries, self._closed = self._closed, []
        listening = list(consumers)
        for stream in streams:
            entries.append(_intake(stream, is_closed=False))
            entries += [
                _sent(stream, consumer, is_closed=False)
                for consumer in listening
                if stream.account.expected_by(consumer.number)
            ]
        return entries


def _intake(stream: ForwardedStream, *, is_closed: bool) -> IntakeCounts:
    account = stream.account
    return IntakeCounts(
        stream.key,
        stream.epoch,
        stream.first,
        stream.next_sequence,
        packets=account.packets,
        left_out=account.left_out,
        lost=tuple(sorted(stream.lost_by_cause.items())),
        repaired=stream.repaired,
        nacks=stream.nacks,
        messages=account.messages,
        unwanted=account.unwanted,
        is_closed=is_closed,
    )


def _sent(stream: ForwardedStream, consumer: Consumer, *, is_closed: bool) -> Sent:
    booked = stream.account.booked(consumer.number)
    return Sent(
        stream.key,
        stream.epoch,
        tuple(each.name for each in consumer.applications.values()),
        consumer.delivery,
        booked["first"],
        stream.account.expected_by(consumer.number),
        packets=booked["packets"],
        left_out=booked["left_out"],
        lost=booked["lost"],
        late=booked["late"],
        offered=booked["offered"],
        messages=booked["messages"],
        nacks=stream.nacks_from[consumer.number],
        repairs=stream.repairs_to[consumer.number],
        is_closed=is_closed,
    )
