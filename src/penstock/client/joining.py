"""Late join, without I/O: live messages are kept until an image arrives that they follow.

    adapter     ──1──2──┬──3──4──┬──5──6──►
                     opened    image
    live stream         └──3──4─────5──6──►      kept 3 and 4, which the image includes
    application                  └──5──6──►

An image is requested from an adapter after the adapter's live stream has begun, so that the stream delivers every
message after the image. An image is discarded, and another one requested, if its adapter's stream was restarted after
the request, if another adapter's stream was ahead of the image from the start, or if a message after the image is
already lost. A multicast stream has begun when its group is joined.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError
from penstock.capture.live.reading import ORIGIN
from penstock.client.config import ClientConfig
from penstock.client.service import Image, place
from penstock.middleware import Discontinuity, LossReceipt, MergeGap, Merger, SessionEvent, StartAfter, StreamKey
from penstock.security.core.brokering import StreamAddress
from penstock.wire import MessageBatch, PacketMessage, decode_origin

Receipt: TypeAlias = MergeGap | Discontinuity | LossReceipt
Told: TypeAlias = Receipt | SessionEvent
Outcome: TypeAlias = MessageBatch | list[PacketMessage] | Told


class Begun(msgspec.Struct, frozen=True):
    """A live stream over TCP that its adapter has opened, or a stream from a filter module. Each connection has a new
    one.
    """

    connection: int
    publisher_id: int
    group: int = 0


Live: TypeAlias = Mapping[StreamAddress, Begun] | None
"""The begun streams, by place of their adapter; None: all have begun, by multicast."""


class Joining:
    """The state from the subscription until an image is joined. `merger` merges the live streams."""

    def __init__(self, merger: Merger, config: ClientConfig, feed: str) -> None:
        self._merger = merger
        self._config = config
        self._feed = feed
        self._kept: list[list[PacketMessage] | Told] = []
        self._kept_count = 0
        self._passed: dict[int, int] = {}  # the last message that was skipped, by source stream
        self._live: Live = None  # when the image was requested
        self._attempts = 0
        self._pause_until_ns = 0

    def keep(self, outcomes: Sequence[Outcome]) -> None:
        for each in outcomes:
            if isinstance(each, MessageBatch | list):
                self._kept.append(list(each))
                self._kept_count += len(each)
            else:
                self._kept.append(each)
        if self._kept_count > self._config.early_messages_max:
            raise PenstockError("too many messages are waiting for an image", where=self._feed)

    def pass_over(self, message: PacketMessage) -> None:
        """Skip a message from before the subscription that cannot be decrypted; earlier images are unusable."""
        if (body := message.extensions.get(ORIGIN)) is not None:
            origin = decode_origin(body)
            self._passed[origin.stream_id] = max(self._passed.get(origin.stream_id, 0), origin.message_sequence)

    def ask(self, addresses: Sequence[StreamAddress], live: Live, now_ns: int) -> list[StreamAddress]:
        """Return the adapters to ask for an image now, in this order; none during a pause."""
        able = [each for each in addresses if live is None or place(each) in live]
        if not able or now_ns < self._pause_until_ns:
            return []
        if self._attempts >= self._config.image_attempts_max:
            raise PenstockError("no adapter sent an image that the live stream follows", where=self._feed)
        self._attempts += 1
        self._live = None if live is None else dict(live)
        return able

    def fail(self, now_ns: int) -> None:
        """No image arrived; ask again after a pause."""
        self._pause_until_ns = now_ns + round(self._config.reconnect_s * NS_PER_SECOND)

    def fits(self, image: Image, live: Live) -> bool:
        """True if no message is missing between the image and the live messages."""
        if live is not None and self._begun(image) != live.get(place(image.address)):
            return False
        lost = {each.stream_id: each.last for each in self._kept if isinstance(each, MergeGap)}
        for position in image.positions:
            if position.message_sequence >= 2**64 or position.message_sequence < lost.get(position.stream_id, 0):
                return False
            if position.message_sequence < self._passed.get(position.stream_id, 0):
                return False
            source = self._merger.source_stream(position.stream_id)
            if source is None or not source.is_started:
                continue
            if not source.is_same_lineage(position.term) or position.message_sequence < source.begun_after:
                return False
        return True

    def kept_after(self, image: Image) -> list[list[PacketMessage] | Told]:
        positions = {each.stream_id: each.message_sequence for each in image.positions}
        after: list[list[PacketMessage] | Told] = []
        for each in self._kept:
            if isinstance(each, list):
                each = [message for message in each if _is_after(message, positions)]
            if not isinstance(each, list) or each:
                after.append(each)
        return after

    def starts(self, image: Image) -> list[StartAfter]:
        """Return the start positions for the merger when the image is joined."""
        begun = self._begun(image)
        stream = None if begun is None else StreamKey(begun.publisher_id, begun.group)
        return [StartAfter(each.stream_id, each.term, each.message_sequence, stream) for each in image.positions]

    def _begun(self, image: Image) -> Begun | None:
        """Return the live stream of the image's adapter at the time of the request."""
        return None if self._live is None else self._live[place(image.address)]


def _is_after(message: PacketMessage, positions: dict[int, int]) -> bool:
    body = message.extensions.get(ORIGIN)
    if body is None:
        return True
    origin = decode_origin(body)
    return origin.message_sequence > positions.get(origin.stream_id, -1)
