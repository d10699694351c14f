"""The sending side of MoldUDP64, without sockets: numbers messages, makes datagrams, answers requests."""

from bisect import bisect_right

from penstock.base.counters import Cause, Counters
from penstock.base.errors import PacketError
from penstock.feed.formats._framing import MOLD_HEADER_SIZE, cut, skip
from penstock.feed.formats.mold import decode_request, encode_end, encode_header

ANSWER_MESSAGES_MAX = 10_000


class MoldServer:
    """One session. What was sent is kept, at most so many bytes of it, for whoever asks."""

    def __init__(
        self, session: str, *, packet_size_max: int, kept_bytes_max: int, counters: Counters | None = None
    ) -> None:
        self.session = session
        self.next_sequence = 1
        self.counters = counters or Counters("feed.player")
        self._room = packet_size_max - MOLD_HEADER_SIZE
        self._kept_bytes_max = kept_bytes_max
        self._kept: list[bytes] = []
        self._firsts: list[int] = []
        self._kept_bytes = 0

    def send(self, blocks: bytes) -> list[bytes]:
        """Datagrams with the next messages."""
        datagrams = []
        first = self.next_sequence
        for offset, size, count in cut(blocks, self._room):
            header = encode_header(self.session, self.next_sequence, count)
            datagrams.append(header + blocks[offset : offset + size])
            self.next_sequence += count
        self._keep(first, blocks)
        self.counters.add("source_messages_sent", self.next_sequence - first)
        return datagrams

    def heartbeat(self) -> bytes:
        return encode_header(self.session, self.next_sequence, 0)

    def end(self) -> bytes:
        return encode_end(self.session, self.next_sequence)

    def answer(self, request: bytes) -> list[bytes]:
        """Datagrams for somebody who asked, as far as what was asked for is known; anybody may ask anything."""
        try:
            asked = decode_request(request)
        except PacketError as error:
            self.counters.add("source_requests_refused", cause=error.cause)
            return []
        first = asked.first_sequence
        if asked.session != self.session or not self._firsts or not self._firsts[0] <= first < self.next_sequence:
            self.counters.add("source_requests_refused", cause=Cause.GONE)
            return []
        self.counters.add("source_requests_answered")
        number = bisect_right(self._firsts, first) - 1
        chunk = self._kept[number]
        start = skip(chunk, first - self._firsts[number])
        wanted = chunk[start : start + skip(memoryview(chunk)[start:], min(asked.count, ANSWER_MESSAGES_MAX))]
        datagrams = []
        for offset, size, count in cut(wanted, self._room):
            datagrams.append(encode_header(self.session, first, count) + wanted[offset : offset + size])
            first += count
        return datagrams

    def _keep(self, first: int, blocks: bytes) -> None:
        self._kept.append(blocks)
        self._firsts.append(first)
        self._kept_bytes += len(blocks)
        dropped = 0
        while self._kept_bytes > self._kept_bytes_max and dropped < len(self._kept):
            self._kept_bytes -= len(self._kept[dropped])
            dropped += 1
        del self._kept[:dropped], self._firsts[:dropped]
