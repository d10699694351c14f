"""PublisherPositions: per publisher, the highest contiguous persisted number, and the persisted numbers above it.

A publisher numbers its messages across all streams. Each stream has a journal of its own, so a crash can keep a message
and lose an earlier one of another stream. Messages after such a gap are kept, and not accepted again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice, takewhile

from penstock.base.clock import NS_PER_SECOND
from penstock.tree.core.kernel._frame import (
    EXTENSION_PUBLISHED,
    PUBLISHED_NUMBER_AT,
    PUBLISHED_PUBLISHER_AT,
    split_packets,
)
from penstock.wire import decode

EXTENSION_HEADER_SIZE = 4

FORGOTTEN_AFTER_NS = 900 * NS_PER_SECOND
"""An absent publisher that has published nothing for this long can be forgotten in favour of another."""


def published_numbers(packets: bytes) -> dict[int, list[int]]:
    """By publisher id: the numbers of its messages in these packets."""
    found: dict[int, list[int]] = defaultdict(list)
    for packet in split_packets(packets):
        body = decode(packet)[0].extensions.get(EXTENSION_PUBLISHED)
        if body is not None:
            at, number_at = PUBLISHED_PUBLISHER_AT - EXTENSION_HEADER_SIZE, PUBLISHED_NUMBER_AT - EXTENSION_HEADER_SIZE
            publisher_id = int.from_bytes(body[at : at + 8], "little")
            found[publisher_id].append(int.from_bytes(body[number_at : number_at + 8], "little"))
    return found


class PublisherPositions:
    def __init__(self, through: Mapping[int, int] | None = None, bearers: Mapping[int, str] | None = None) -> None:
        self.through: dict[int, int] = dict(through or {})
        """By publisher id: the highest contiguous persisted number. The last to publish is last."""
        self._published_ns: dict[int, int] = {}
        """By publisher id: the time of its last message since `since_ns`."""
        self.since_ns = 0
        """When this agent became the root."""
        self.beyond: dict[int, set[int]] = {}
        """By publisher id: the persisted numbers after a gap."""
        self.bearers: dict[int, str] = dict(bearers or {})
        """By publisher id: the client to which the id belongs, also while it is absent."""

    def __len__(self) -> int:
        return len(self.through)

    def __contains__(self, publisher_id: int) -> bool:
        return publisher_id in self.through

    def get(self, publisher_id: int) -> int:
        return self.through.get(publisher_id, 0)

    def is_of_another(self, publisher_id: int, bearer: str) -> bool:
        return self.bearers.get(publisher_id, bearer) != bearer

    def set(self, publisher_id: int, through: int, now_ns: int) -> None:
        """All messages of the publisher up to this number are persisted."""
        self.through.pop(publisher_id, None)
        self.through[publisher_id] = through
        self._published_ns[publisher_id] = now_ns
        self._close_gap(publisher_id)

    def has_room(self, count_max: int, now_ns: int, connected: Collection[int]) -> bool:
        """True if one more publisher fits. The publishers that published longest ago are forgotten for it, except those
        that are connected or published recently."""
        if len(self.through) < count_max:
            return True
        excess = len(self.through) - count_max + 1
        away = (each for each in self.through if each not in connected)
        idle = takewhile(lambda each: now_ns - self._published_ns.get(each, self.since_ns) >= FORGOTTEN_AFTER_NS, away)
        found = list(islice(idle, excess))
        for each in found:
            self._forget(each)
        return len(found) == excess

    def trim(self, count_max: int) -> None:
        """Forget the publishers that published longest ago."""
        while len(self.through) > count_max:
            self._forget(next(iter(self.through)))

    def _forget(self, publisher_id: int) -> None:
        del self.through[publisher_id]
        self._published_ns.pop(publisher_id, None)
        self.beyond.pop(publisher_id, None)
        self.bearers.pop(publisher_id, None)

    def note(self, packets: bytes) -> None:
        """These packets are persisted, whatever is missing before them."""
        for publisher_id, numbers in published_numbers(packets).items():
            self.note_numbers(publisher_id, numbers)

    def note_numbers(self, publisher_id: int, numbers: Iterable[int]) -> None:
        through = self.through.pop(publisher_id, 0)
        self.through[publisher_id] = through
        beyond = self.beyond.setdefault(publisher_id, set())
        beyond.update(number for number in numbers if number > through)
        self._close_gap(publisher_id)

    def _close_gap(self, publisher_id: int) -> None:
        beyond = self.beyond.get(publisher_id)
        if beyond is None:
            return
        through = self.through[publisher_id]
        while through + 1 in beyond:
            through += 1
            beyond.discard(through)
        self.through[publisher_id] = through
        if not beyond:
            del self.beyond[publisher_id]

    def is_whole(self, publisher_id: int) -> bool:
        """True if there is no gap."""
        return publisher_id not in self.beyond

    def portions(self, publisher_id: int, packets: bytes) -> Iterator[bytes]:
        """A publisher's block without the messages that are persisted already, split at each gap. The caller accepts
        each portion, and calls set(), before it asks for the next."""
        if self.is_whole(publisher_id):
            yield packets
            return
        part: list[bytes] = []
        for packet in split_packets(packets):
            if decode(packet).sequence in self.beyond.get(publisher_id, ()):
                if part:
                    yield b"".join(part)
                part = []
            else:
                part.append(packet)
        if part:
            yield b"".join(part)
