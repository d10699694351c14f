"""One subscriber of an adapter's stream service: its interests and grants, its queue, and its image if requested."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.errors import TopicError
from penstock.feed.core.service.accounts import SubscriberAccount
from penstock.feed.core.service.published import StreamPacker
from penstock.feed.core.service.selection import Selector
from penstock.middleware.core.events import OutgoingMessage
from penstock.middleware.unicast import OpenStream
from penstock.security import Entitlement, Token


class PendingRows(msgspec.Struct, frozen=True):
    """Messages published before the subscriber's image was taken."""

    data: NDArray[Any]
    packet_sequences: NDArray[Any]
    rows: NDArray[Any]


class Subscriber:
    """A subscriber from the opening of its stream to the end.

    `granted_s` is the delay of the grants in use, `delay_s` the delay of the stream, which is not smaller. A
    TopicError means that an interest of `opening` is invalid.
    """

    def __init__(
        self,
        number: int,
        opening: OpenStream,
        token: Token,
        packer: StreamPacker,
        open_account: Callable[[], SubscriberAccount],
        *,
        granted_s: int,
        delay_s: int,
    ) -> None:
        self.number = number
        self.is_live = opening.live
        self.delay_s = delay_s
        self._granted_s = granted_s
        self._packer = packer
        self._queued_size = 0
        self._contributes: set[str] = set()
        self._pending: list[PendingRows] | None = [] if opening.image else None
        self._first_packet = 0  # the image includes earlier packets
        self._selector = Selector()  # for the image, and for a delayed stream
        self._token = token
        self._topics: list[str] = []
        self._entitlement = Entitlement(token.grants)
        self.modify(opening.topics, token)
        self._account = open_account()  # a subscriber with invalid interests has none

    @property
    def token(self) -> Token:
        return self._token

    @property
    def topics(self) -> list[str]:
        return self._topics

    @property
    def account(self) -> SubscriberAccount:
        return self._account

    @property
    def wants_published(self) -> bool:
        """True if the subscriber gets messages as they are published, now or after its image."""
        return not self.delay_s and (self.is_live or self.is_awaiting_image)

    # Interests and grants

    def modify(self, topics: Sequence[str], token: Token) -> None:
        """Replace the interests and the token; a TopicError changes neither."""
        before, self._token = self._token, token
        try:
            self._selector.set(0, topics, self.patterns())
        except TopicError:
            self._token = before
            raise
        self._topics = list(topics)
        self._entitlement = Entitlement(token.grants)

    def patterns(self) -> list[str]:
        """The topics granted with this delay, without those granted with a smaller delay, which another stream
        delivers. Negative grants apply to any delay."""
        grants = [grant for grant in self._token.grants if grant.action == "receive"]
        negative = [each.pattern for each in grants if each.pattern.startswith("!")]
        positive = [each for each in grants if not each.pattern.startswith("!")]
        sooner = ["!" + each.pattern for each in positive if each.delay_s < self._granted_s]
        return [each.pattern for each in positive if each.delay_s == self._granted_s] + sooner + negative

    def chosen(self, data: NDArray[numpy.uint8], rows: NDArray[Any]) -> NDArray[Any]:
        """The rows for this subscriber."""
        return self._selector.rows_for(0, data, rows)

    # Contributions

    def may_send(self, topic: str) -> bool:
        return self._entitlement.may_send(topic)

    def contributes_to(self, stream: str) -> bool:
        return stream in self._contributes

    def note_contribution(self, stream: str) -> None:
        """Reserve this stream for the subscriber's contributions until it leaves."""
        self._contributes.add(stream)

    # The image

    @property
    def is_awaiting_image(self) -> bool:
        return self._pending is not None

    def hold(self, rows: PendingRows) -> None:
        """Hold messages until the image is complete."""
        assert self._pending is not None
        self._pending.append(rows)

    def begin_after_image(self, next_packet: int) -> Iterator[PendingRows]:
        """The image includes the packets before `next_packet`. Yield the held messages that follow it."""
        pending, self._pending = self._pending or [], None
        self._first_packet = next_packet
        self._queued_size = 0
        return (
            PendingRows(each.data, each.packet_sequences[is_after], each.rows[is_after])
            for each in pending
            for is_after in [each.packet_sequences >= next_packet]
        )

    def after_image(self, rows: NDArray[Any], sequences: NDArray[Any]) -> NDArray[Any]:
        """Drop rows of published packets with these sequence numbers that the image includes: the image may be newer
        than these packets."""
        if sequences[0] >= self._first_packet:
            return rows
        is_after: NDArray[numpy.bool_] = sequences[rows["packet_index"]] >= self._first_packet
        return rows[is_after]

    # Packets and the queue

    def pack(
        self, topics: NDArray[numpy.uint8] | bytes, payloads: NDArray[numpy.uint8], rows: NDArray[Any]
    ) -> list[bytes]:
        """Pack the messages for this subscriber's stream and count them in its account."""
        packets = self._packer.pack(topics, payloads, rows)
        self._account.note_sent(len(rows), packets)
        return packets

    def pack_messages(self, messages: Sequence[OutgoingMessage]) -> list[bytes]:
        packets = [packet for message in messages for packet in self._packer.pack_message(message)]
        self._account.note_sent(len(messages), packets)
        return packets

    def queue(self, size: int) -> int:
        """Add to the subscriber's queue and return the new size."""
        self._queued_size += size
        return self._queued_size

    def unqueue(self, size: int) -> None:
        self._queued_size -= size
