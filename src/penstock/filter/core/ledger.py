"""What became of every packet number: the account that a module gives of the streams it carries.

Books are kept only where somebody takes them (FilterModule with `keeps_books`). Numbers add up: of a stream, from the
first to the next one, each is of a packet that was taken, or one that its publisher's packets say was left out, or
lost; of what a consumer was sent, each is of a packet that it was sent, or one that those packets' gaps say was left
out, or lost.
"""

from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from penstock.base.counters import Cause
from penstock.filter.core.consumers import Consumer
from penstock.filter.core.forwarded_stream import ForwardedStream
from penstock.middleware import StreamKey


class Intake(msgspec.Struct, frozen=True):
    """What the module has had of one stream in one epoch."""

    stream: StreamKey
    epoch: int
    first_packet: int
    next_packet: int
    packets: int
    """Taken in their turn."""

    left_out: int
    """Numbers that were left out before the network."""

    lost: tuple[tuple[Cause, int], ...]
    """Numbers that never came; those UNREPAIRED are left to the applications to ask for."""

    repaired: int
    """Packets of those taken that came only because they were asked for."""

    nacks: int
    messages: int
    unwanted: int
    """Messages that nobody was sent."""

    is_closed: bool

    @property
    def adds_up(self) -> bool:
        lost = sum(count for _, count in self.lost)
        return self.next_packet - self.first_packet == self.packets + self.left_out + lost


class Sent(msgspec.Struct, frozen=True):
    """What a consumer was sent of one stream in one epoch, since it listens."""

    stream: StreamKey
    epoch: int
    applications: tuple[str, ...]
    """One, or those that have a copy in common."""

    delivery: str
    first_packet: int
    next_packet: int
    packets: int
    left_out: int
    lost: int
    late: int
    """Packets that came after others which follow them; their numbers had been told as lost."""

    offered: int
    """Messages of the stream that came meanwhile."""

    messages: int
    """Those that it was sent."""

    nacks: int
    """Requests for packets that were lost on the way to it."""

    repairs: int
    """Packets that were sent again for them."""

    is_closed: bool

    @property
    def adds_up(self) -> bool:
        return self.next_packet - self.first_packet == self.packets + self.left_out + self.lost


Entry: TypeAlias = Intake | Sent


class Ledger:
    """Accounts that are closed wait here for take()."""

    def __init__(self) -> None:
        self._closed: list[Entry] = []

    def open(self, stream: ForwardedStream) -> None:
        stream.account.keep_books()

    def close_consumer(self, stream: ForwardedStream, consumer: Consumer) -> None:
        """It will listen to the stream no longer."""
        if stream.account.expected_by(consumer.number):
            self._closed.append(_sent(stream, consumer, is_closed=True))

    def close(self, stream: ForwardedStream, consumers: Iterable[Consumer]) -> None:
        """The stream is about to be forgotten."""
        for consumer in consumers:
            self.close_consumer(stream, consumer)
        self._closed.append(_intake(stream, is_closed=True))

    def take(self, streams: Iterable[ForwardedStream], consumers: Iterable[Consumer]) -> list[Entry]:
        """Accounts that were closed since it was last asked, and those of today."""
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


def _intake(stream: ForwardedStream, *, is_closed: bool) -> Intake:
    account = stream.account
    return Intake(
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
