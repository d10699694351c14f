"""The sending side of MoldUDP64, without sockets: numbers messages, makes datagrams, answers requests."""

from penstock.base.counters import Cause, Counters
from penstock.base.errors import PacketError
from penstock.feed.core.play.sent_messages import SentMessages
from penstock.feed.formats._framing import MOLD_HEADER_SIZE, cut
from penstock.feed.formats.mold import decode_request, encode_end, encode_header

ANSWER_MESSAGES_MAX = 10_000


class MoldServer:
    """One session. Sent messages are kept for requests, up to a number of bytes."""

    def __init__(
        self, session: str, *, packet_size_max: int, kept_bytes_max: int, counters: Counters | None = None
    ) -> None:
        self.session = session
        self.counters = counters or Counters("feed.player")
        self._room = packet_size_max - MOLD_HEADER_SIZE
        self._history = SentMessages(kept_bytes_max)

    @property
    def next_sequence(self) -> int:
        return self._history.next_sequence

    def send(self, blocks: bytes) -> list[bytes]:
        """Return datagrams with the next messages."""
        first = self.next_sequence
        datagrams, next_sequence = self._datagrams(first, blocks)
        count = next_sequence - first
        self._history.add(blocks, count)
        self.counters.add("source_messages_sent", count)
        return datagrams

    def heartbeat(self) -> bytes:
        return encode_header(self.session, self.next_sequence, 0)

    def end(self) -> bytes:
        return encode_end(self.session, self.next_sequence)

    def answer(self, request: bytes) -> list[bytes]:
        """Return datagrams for a request, as far as its messages are kept. Requests may be hostile."""
        try:
            asked = decode_request(request)
        except PacketError as error:
            self.counters.add("source_requests_refused", cause=error.cause)
            return []
        wanted, _ = self._history.find(asked.first_sequence, min(asked.count, ANSWER_MESSAGES_MAX))
        if asked.session != self.session or not wanted:
            self.counters.add("source_requests_refused", cause=Cause.GONE)
            return []
        self.counters.add("source_requests_answered")
        return self._datagrams(asked.first_sequence, wanted)[0]

    def _datagrams(self, sequence: int, blocks: bytes) -> tuple[list[bytes], int]:
        """Return datagrams with these messages, and the number after them."""
        datagrams = []
        for offset, size, count in cut(blocks, self._room):
            datagrams.append(encode_header(self.session, sequence, count) + blocks[offset : offset + size])
            sequence += count
        return datagrams, sequence
