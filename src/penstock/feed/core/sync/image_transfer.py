"""Transfer of conversion states from the active adapter to backups whose own state differs (SYNC-5, SYNC-9)."""

from collections.abc import Callable

import msgspec
import numpy

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.conversion import StateImage
from penstock.feed.core.events import SendPeer
from penstock.feed.core.sync.flow import Mode, StreamFlow
from penstock.feed.core.sync.messages import ImageBegin, ImageChunk, ImageRefused, ImageRequest

DIGEST_SIZE = 8


class _Sending(msgspec.Struct):
    peer: int
    request: ImageRequest
    image: StateImage | None = None
    number: int = 0
    due_ns: int = 0


class ImageSender:
    """The active adapter's side: one image per source stream at a time, sent in chunks at a limited rate."""

    def __init__(self, config: SynchroniserConfig, flow_of: Callable[[int], StreamFlow | None]) -> None:
        self._config = config
        self._flow_of = flow_of
        self._sendings: dict[int, list[_Sending]] = {}

    def ask(self, peer: int, request: ImageRequest, now_ns: int) -> list[SendPeer]:
        """Handle a backup's request for an image, which replaces its earlier request."""
        if self._flow_of(request.stream_id) is None:
            return [SendPeer(peer, ImageRefused(request.stream_id, request.request, "no such source stream"))]
        if len(request.known) % DIGEST_SIZE:
            return [SendPeer(peer, ImageRefused(request.stream_id, request.request, "no list of digests"))]
        queue = self._sendings.setdefault(request.stream_id, [])
        queue[:] = [each for each in queue if each.peer != peer]
        queue.append(_Sending(peer, request, due_ns=now_ns))
        return self.send(now_ns)

    def forget(self, *, peer: int | None = None, stream_id: int | None = None) -> None:
        """Drop the requests of a lost peer, of a broken source stream, or all of them."""
        for each, queue in self._sendings.items():
            if stream_id is None or each == stream_id:
                queue[:] = [sending for sending in queue if peer is not None and sending.peer != peer]

    def next_due_ns(self) -> int | None:
        dues = [queue[0].due_ns for queue in self._sendings.values() if queue and queue[0].image is not None]
        return min(dues, default=None)

    def send(self, now_ns: int) -> list[SendPeer]:
        """Return the messages that are due."""
        messages: list[SendPeer] = []
        for stream_id, queue in self._sendings.items():
            flow = self._flow_of(stream_id)
            if flow is None or flow.mode is not Mode.FLOWING or not queue:
                continue
            # a request for a later source position must not delay the others
            queue.sort(key=lambda sending: sending.image is None and flow.position < sending.request.at_least)
            while queue and queue[0].due_ns <= now_ns and flow.position >= queue[0].request.at_least:
                if not self._send_one(flow, queue[0], messages, now_ns):
                    queue.pop(0)
        return messages

    def _send_one(self, flow: StreamFlow, sending: _Sending, messages: list[SendPeer], now_ns: int) -> bool:
        """Send a chunk, preceded by the position if it is the first. True if chunks remain."""
        request = sending.request
        if sending.image is None:
            known = numpy.frombuffer(request.known, numpy.uint64) if request.known else None
            sending.image = flow.converter.state.begin_image(known)
            now = flow.converter.checkpoint_now()
            begin = ImageBegin(
                request.term,
                flow.stream_id,
                request.request,
                flow.session or "",
                flow.position,
                now.next_message_sequence,
                now.digest,
            )
            messages.append(SendPeer(sending.peer, begin))
        data = sending.image.chunk(self._config.image_chunk_size)
        messages.append(SendPeer(sending.peer, ImageChunk(flow.stream_id, request.request, sending.number, data)))
        sending.number += 1
        sending.due_ns = now_ns + len(data) * NS_PER_SECOND // self._config.image_bytes_per_s + 1
        return len(data) > 0


class ImageReceiver:
    """The backup's side: one request, and the chunks received for it."""

    def __init__(self, config: SynchroniserConfig, request: int, now_ns: int) -> None:
        self.request = request
        self.begin: ImageBegin | None = None
        self.chunks: list[bytes] = []
        self.size = 0
        self.is_complete = False
        self._config = config
        self._heard_ns = now_ns

    @property
    def expiry_ns(self) -> int:
        return self._heard_ns + self._config.image_timeout_ms * NS_PER_MS

    def take(self, message: ImageBegin | ImageChunk, now_ns: int) -> bool:
        """Add a message. False if the image cannot be completed any more."""
        self._heard_ns = now_ns
        if isinstance(message, ImageBegin):
            is_first, self.begin = self.begin is None, message
            return is_first
        self.size += len(message.data)
        is_next = self.begin is not None and message.number == len(self.chunks) and not self.is_complete
        if not is_next or self.size > self._config.image_size_max:
            return False
        self.is_complete = not message.data
        if message.data:
            self.chunks.append(message.data)
        return True
