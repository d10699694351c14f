"""The active router's side of a link to the other one."""

from collections import deque
from collections.abc import Sequence

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.assured._layout import KIND_LIVE
from penstock.assured._sending import (
    begin_stream,
    end_stream,
    next_frame,
    publisher_frames,
    send_missing,
    stream_count,
)
from penstock.assured.config import EndpointConfig
from penstock.assured.core import MessageRouter
from penstock.assured.endpoints import Endpoint
from penstock.assured.events import Instruction
from penstock.assured.holding import Streaming
from penstock.assured.pairing import MESSAGE_SIZE_MAX, PAIR, Defined, Listed, Message, PairConfig, Resync, Whole
from penstock.base.clock import NS_PER_MS
from penstock.base.errors import RemoteProtocolError
from penstock.net.framing import encode_frame

FRAME_SIZE_GOOD = 131_072
IDS_PER_FRAME = 65_536
GATHER_NS = 10 * NS_PER_MS
"""Between two frames of what nobody waits for: so the other router works, and syncs, beside few publishers' turns."""


class _Sent(msgspec.Struct, frozen=True):
    position: int
    size: int
    last_id: int
    sent_ns: int


class _Told(msgspec.Struct, frozen=True):
    """What the other router knows of an endpoint."""

    config: EndpointConfig
    is_copied: bool
    definition: bytes


class _Later(msgspec.Struct, frozen=True):
    """What the other router may not hear of an endpoint before it has what happened until then."""

    after: int
    """So many items of the stream."""

    name: str
    message: Defined


def encode(message: Message) -> bytes:
    return encode_frame(PAIR.encode(message, MESSAGE_SIZE_MAX))


class Sending:
    """`out` is what is to be sent; `through_id` says up to which message the other router has everything."""

    def __init__(self, router: MessageRouter, config: PairConfig, stream: int, *, is_matching: bool) -> None:
        self.stream = stream
        self.out: list[bytes] = []
        self.through_id = 0
        self.is_whole = False
        """It has been, since this link is there."""
        self._router = router
        self._config = config
        self._is_matching = is_matching
        """The other router finds out who wants a message."""
        self._defined: dict[int, _Told] = {}
        self._later: deque[_Later] = deque()
        self._changes = -1
        """Of endpoints, as far as they were looked at."""
        self._passed = 0
        """Items of the stream whose turn has come."""
        self._missing: list[NDArray[numpy.uint64]] = []
        self._is_listed = True
        """The other router still compares."""
        self._position = self._stored = 0
        self._sent: deque[_Sent] = deque()
        self._unstored_size = 0
        self._sent_ns = -GATHER_NS
        self.gathered_ns: int | None = None
        """When what has gathered is to go."""
        self._fetching = 0
        """The request for what has to be read before more can be sent; 0: none."""
        self._caught_up: int | None = None
        """The position after which it has caught up."""
        live = begin_stream(router.tables)
        self._listed_count = sum(map(len, live.values()))
        self._missing_count = 0
        since = router.log.since
        self.out.append(encode(Resync(stream, router.epoch, since.epoch, since.id)))
        self.mirror()
        for number, ids in live.items():
            for start in range(0, len(ids), IDS_PER_FRAME):
                self.out.append(ids_frame(KIND_LIVE, number, ids[start : start + IDS_PER_FRAME]))
        self.out += publisher_frames(router.tables, FRAME_SIZE_GOOD)
        self.out.append(encode(Listed()))
        self._streaming = Streaming(self.out, config.window_bytes, router.publishing.is_replicated)
        if config.transactions == "stream":
            router.transactions.streaming = self._streaming

    def end(self) -> None:
        end_stream(self._router.tables)
        self._router.transactions.streaming = None

    @property
    def is_drained(self) -> bool:
        return not (self._is_listed or self._sent or self._later or self.backlog)

    @property
    def oldest_ns(self) -> int | None:
        """When that was sent which the other router has had longest without storing it."""
        return self._sent[0].sent_ns if self._sent else None

    @property
    def newest_id(self) -> int:
        """Of all that there is."""
        return self._router.tables.next_id - 1

    @property
    def backlog(self) -> int:
        """What waits for its turn, in messages and whatever else happened."""
        return stream_count(self._router.tables)

    def mirror(self) -> bool:
        """Tell how endpoints are defined, as far as that is not known. What was accepted before goes with its
        endpoints: the other router finds those that there are when it comes. False: it has to be compared anew what
        there is."""
        if self._changes == self._router.endpoints.changes:
            return True
        self._changes = self._router.endpoints.changes
        current = {each.number: self._told(each) for each in self._router.endpoints}
        new = {number: told for number, told in current.items() if self._defined.get(number) != told}
        # What was given up by an endpoint may wait for its turn, and the copies that it goes on with are still there.
        # So may what one was filled with out of the log: the other router has to go on where it has everything.
        filled = [number for number in new if number in self._defined and self._is_same(number, new[number])]
        gone = self._defined.keys() - current.keys()
        if self._must_compare({number: told for number, told in new.items() if number not in filled}):
            return False
        for number, told in new.items():
            if number in filled:
                self._tell_later(told.config.name, Defined(number, told.definition))
            else:
                self.out.append(encode(Defined(number, told.definition)))
        for number in gone:
            self._tell_later(self._defined[number].config.name, Defined(number, b"", is_deleted=True))
        self._defined = current
        if gone or len(new) > len(filled):
            self._match_from_now()
        return True

    def _told(self, endpoint: Endpoint) -> _Told:
        is_copied = self._router.config.replicate_by != "endpoint" or endpoint.config.replication != "none"
        return _Told(endpoint.config, is_copied, msgspec.json.encode(endpoint.definition))

    def _is_same(self, number: int, told: _Told) -> bool:
        """But for how far it is filled."""
        return self._defined[number].config == told.config

    def _must_compare(self, new: dict[int, _Told]) -> bool:
        """An endpoint has copies that had none, or none any more; or of one of this name something is to be told that
        would come after this, and be older."""
        names = {each.name for each in self._later}
        known = {number: self._defined[number] for number in new if number in self._defined}
        is_copied_otherwise = any(new[number].is_copied != told.is_copied for number, told in known.items())
        return is_copied_otherwise or any(told.config.name in names for told in new.values())

    def _match_from_now(self) -> None:
        """The other router finds the endpoints of what comes from now on; it cannot while it has some too many."""
        is_matching = self._is_matching and not any(each.message.is_deleted for each in self._later)
        self._router.tables.match_from = self._router.tables.next_id if is_matching else 0

    def _tell_later(self, name: str, message: Defined) -> None:
        self._later.append(_Later(self._passed + self.backlog, name, message))

    def _tell_now(self) -> None:
        """What was to be told later, and whose turn has come."""
        while self._later and (self._later[0].after <= self._passed or not self.backlog):
            message = self._later.popleft().message
            self.out.append(encode(message))
            if message.is_deleted:
                self._match_from_now()

    def frame(self, data: bytes) -> None:
        """What the other router has not got."""
        stream, is_last, ids = read_ids(data)
        if stream == self.stream:
            self.missing(ids, is_last)

    def missing(self, ids: NDArray[numpy.uint64], is_last: bool) -> None:
        if not self._is_listed:
            raise RemoteProtocolError("it has said already what it misses")
        self._missing_count += len(ids)
        if self._missing_count > self._listed_count or (len(ids) and not ids[0]):
            raise RemoteProtocolError(f"it misses {self._missing_count} messages, of {self._listed_count}")
        self._missing.append(ids)
        if is_last:
            self._is_listed = False
            wanted = distinct(self._missing)
            self._missing.clear()
            send_missing(self._router.tables, wanted)
            self._passed -= len(wanted)  # they come before all that waits
            self.through_id = int(wanted[0]) - 1 if len(wanted) else 0

    def stored_to(self, position: int) -> None:
        if not self._stored <= position <= self._position:
            raise RemoteProtocolError(f"it has stored {position} records, of {self._position}")
        self._stored = position
        while self._sent and self._sent[0].position <= position:
            sent = self._sent.popleft()
            self._unstored_size -= sent.size
            self.through_id = max(self.through_id, sent.last_id)

    def pump(self, now_ns: int, *, is_hurried: bool) -> list[Instruction]:
        """Send what the window has room for, but for what nobody waits for: that gathers; what has to be read first."""
        tables = self._router.tables
        told: list[Instruction] = []
        is_gathering = not is_hurried and self._is_gathering(now_ns)
        self.gathered_ns = self._sent_ns + GATHER_NS if is_gathering and self.backlog else None
        while not is_gathering and self._may_send:
            waiting = self.backlog
            data, self._position, last_id, ids, sequences = next_frame(
                tables, self._position, FRAME_SIZE_GOOD, self._router.config.fetch_messages_max
            )
            self._passed += waiting - self.backlog
            if data is not None:
                size = self._streaming.send(data)
                self._sent.append(_Sent(self._position, size, last_id, now_ns))
                self._unstored_size += size
                self._sent_ns = now_ns
                self._tell_now()
            if len(ids):
                reading = self._router.log.fetch(0, ids, sequences)
                self._fetching = reading.request
                told.append(reading)
            if data is None:
                break
        if not self._is_listed:
            self._tell_now()
        if not self.backlog:
            tables.is_stream_awaited = False
        if self.is_drained:
            self.through_id = tables.next_id - 1
        if not self.is_whole and not self._is_listed:
            self._look_whether_whole()
        return told

    @property
    def _may_send(self) -> bool:
        return not self._is_listed and not self._fetching and self._unstored_size < self._config.window_bytes

    def _is_gathering(self, now_ns: int) -> bool:
        is_early = now_ns < self._sent_ns + GATHER_NS
        is_awaited = self._router.tables.is_stream_awaited or awaits_release(self._router)
        return is_early and self.is_whole and not is_awaited

    def _look_whether_whole(self) -> None:
        """It has caught up when it has stored all that there was at some moment; others come all the time."""
        if self._caught_up is None and not self.backlog:
            self._caught_up = self._position
        if self._caught_up is not None and self._stored >= self._caught_up:
            self.is_whole = True
            self.out.append(encode(Whole(self._router.epoch)))

    def fetched(self, request: int) -> None:
        """Something was read from the journal, for whomever."""
        if request == self._fetching:
            self._fetching = 0


def awaits_release(router: MessageRouter) -> bool:
    """Whether something may wait for the other router."""
    tables = router.tables
    is_stored = router.log.stored_through + 1 == tables.next_sequence
    is_waiting = tables.unreplicated_count or (tables.waiting_count and is_stored) or tables.is_holding
    return bool(is_waiting or router.transactions.is_waiting)


def distinct(parts: Sequence[NDArray[numpy.uint64]]) -> NDArray[numpy.uint64]:
    """The ids of all parts, each once, ascending. They mostly are so already: sorting is quicker than hashing."""
    ids = numpy.sort(numpy.concatenate(parts))
    return ids[numpy.concatenate([[True], ids[1:] != ids[:-1]])] if len(ids) else ids


def ids_frame(kind: int, number: int, ids: NDArray[numpy.uint64], *, is_last: bool = False) -> bytes:
    head = bytes([kind, is_last, 0, 0]) + number.to_bytes(4, "little")
    return encode_frame(head + ids.astype("<u8").tobytes())


def read_ids(data: bytes) -> tuple[int, bool, NDArray[numpy.uint64]]:
    """(endpoint, whether it is the last frame, ids), which rise."""
    if len(data) < 8 or len(data) % 8:
        raise RemoteProtocolError("a frame of ids is not whole")
    ids = numpy.frombuffer(data, "<u8", offset=8).astype(numpy.uint64)
    if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
        raise RemoteProtocolError("the ids of a frame do not rise")
    return int.from_bytes(data[4:8], "little"), bool(data[1] & 1), ids
