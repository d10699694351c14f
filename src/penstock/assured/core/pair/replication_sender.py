"""The active router's side of a link to the other one."""

from collections import deque

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.assured.core.pair._sending import (
    begin_stream,
    is_transaction,
    next_frame,
    publisher_frames,
    send_missing,
    uncopied_counts,
)
from penstock.assured.core.pair.endpoint_updates import EndpointUpdates
from penstock.assured.core.pair.id_lists import IDS_PER_FRAME, distinct, ids_frame, read_ids
from penstock.assured.core.pair.protocol import (
    LEFT_MAX,
    Lacking,
    Listed,
    PairConfig,
    Resync,
    Standing,
    StoredTo,
    Whole,
    encode,
)
from penstock.assured.core.pair.transaction_stream import TransactionStream
from penstock.assured.core.router._mirroring import set_absent
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoints import Endpoints
from penstock.assured.core.router.events import Instruction, ReadRecords, RecordsRead
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire._layout import KIND_LIVE
from penstock.base.clock import NS_PER_MS
from penstock.base.errors import RemoteProtocolError

FRAME_SIZE_GOOD = 131_072
RELIST_NS = 5_000 * NS_PER_MS
"""Interval of new lists for a router with a full disk, which drops unlisted messages and answers when there is room."""

GATHER_NS = 10 * NS_PER_MS
"""Time between two frames that no publisher waits for, so that few publishers are delayed by the other router's
work."""


class _Sent(msgspec.Struct, frozen=True):
    position: int
    size: int
    last_id: int
    sent_ns: int


class ReplicationSender:
    """`out` has the messages to send; the other router has everything up to message `through_id`."""

    def __init__(self, router: MessageRouter, config: PairConfig, stream: int, peer: Standing) -> None:
        self.stream = stream
        self.out: list[bytes] = []
        self.through_id = 0
        self.is_whole = False
        """True if it was whole at some time on this link."""
        self._router = router
        self._tables = router.tables
        self._replication = router.replication
        self._log = router.log
        self._config = config
        is_matching = config.matching == "secondary" and peer.is_matching
        self._definitions = EndpointUpdates(router.tables, router.endpoints, self.out, is_matching=is_matching)
        self._is_other_full = not peer.is_storing
        self._relist_ns: int | None = None
        """Time of the next comparison, so that a router with a full disk learns what was settled since."""
        self._missing: list[NDArray[numpy.uint64]] = []
        self._is_listed = True
        """True while the other router compares."""
        self._position = self._stored = 0
        self._sent: deque[_Sent] = deque()
        self._unstored_size = 0
        self._sent_ns = -GATHER_NS
        self.gathered_ns: int | None = None
        """Time at which gathered records are sent, or the next comparison."""
        self._fetching = 0
        """The request for data that must be read before more can be sent; 0: none."""
        self._group_sequence = 0
        self._group: bytes | None = None
        """The record of the next transaction, for which the cache has no room, and its place in the journal."""
        self._caught_up: int | None = None
        """The position after which the other router has caught up."""
        live = begin_stream(self._tables)
        self._doubtful_through = self.newest_id if self._replication.consumed else 0
        """Transactions are listed as if they had ended: messages that they consumed are not sent, and they may still
        be undone. Nothing counts before the other router has all listed messages."""
        self._listed_count = sum(map(len, live.values()))
        self._missing_count = 0
        since = self._log.since
        self.out.append(encode(Resync(stream, router.epoch, since.epoch, since.id)))
        self._definitions.mirror()
        for number, ids in live.items():
            for start in range(0, len(ids), IDS_PER_FRAME):
                self.out.append(ids_frame(KIND_LIVE, number, ids[start : start + IDS_PER_FRAME]))
        self.out += publisher_frames(self._tables, FRAME_SIZE_GOOD)
        self.out.append(encode(Listed(self.newest_id)))
        self._streaming = TransactionStream(self.out, config.window_bytes, router.is_replicated)
        if config.transactions == "stream":
            router.stream_transactions(self._streaming)

    def end(self) -> None:
        set_absent(self._tables, [])
        self._replication.end_stream()
        self._router.stream_transactions(None)

    @property
    def is_drained(self) -> bool:
        return not (self._is_listed or self._sent or self._definitions.is_waiting or self.backlog)

    @property
    def oldest_ns(self) -> int | None:
        """Send time of the oldest record that the other router has not stored."""
        return self._sent[0].sent_ns if self._sent else None

    @property
    def newest_id(self) -> int:
        """The newest message id."""
        return self._router.newest_id

    @property
    def backlog(self) -> int:
        """Number of waiting items: messages and other events."""
        return self._replication.backlog

    @property
    def absent(self) -> list[str]:
        """Endpoints that the other router lacks."""
        return sorted(self._definitions.absent.values())

    def mirror(self, now_ns: int) -> bool:
        """Send changes of endpoints. False: the routers must compare again."""
        is_late = self._is_listed and self._relist_ns is not None and now_ns >= self._relist_ns
        return self._definitions.mirror() and not is_late

    def said(self, message: StoredTo | Lacking) -> None:
        """Handle a message of the other router, if it is about this stream."""
        match message:
            case StoredTo(self.stream, position):
                self.stored_to(position)
            case Lacking(self.stream, numbers):
                self._definitions.lacks(numbers)

    def frame(self, data: bytes) -> None:
        """Handle ids that the other router lacks."""
        stream, is_last, ids = read_ids(data)
        if stream == self.stream:
            self.missing(ids, is_last)

    def missing(self, ids: NDArray[numpy.uint64], is_last: bool) -> None:
        if not self._is_listed:
            raise RemoteProtocolError("the standby reports missing messages twice")
        self._missing_count += len(ids)
        if self._missing_count > self._listed_count or (len(ids) and not ids[0]):
            what = f"{self._missing_count} missing messages, of {self._listed_count} listed ones"
            raise RemoteProtocolError(f"the standby reports {what}")
        self._missing.append(ids)
        if is_last:
            self._is_listed = False
            wanted = distinct(self._missing)
            self._missing.clear()
            send_missing(self._tables, wanted)
            self._definitions.passed(-len(wanted))  # they are sent before all waiting items
            self._count_through(int(wanted[0]) - 1 if len(wanted) else 0)

    def stored_to(self, position: int) -> None:
        if not self._stored <= position <= self._position:
            raise RemoteProtocolError(f"the standby reports {position} stored records of {self._position} sent ones")
        self._stored = position
        while self._sent and self._sent[0].position <= position:
            sent = self._sent.popleft()
            self._unstored_size -= sent.size
            self._count_through(sent.last_id)

    def _count_through(self, last_id: int) -> None:
        if last_id > self._doubtful_through:
            self.through_id = max(self.through_id, last_id)

    def pump(self, now_ns: int, *, is_hurried: bool) -> list[Instruction]:
        """Send what fits the window, except records that no publisher waits for, which are gathered. Return
        instructions to read data that is needed first."""
        told = self._definitions.take_noted()
        is_gathering = not is_hurried and self._is_gathering(now_ns)
        self.gathered_ns = self._sent_ns + GATHER_NS if is_gathering and self.backlog else None
        if self._is_other_full and self._is_listed:
            self._relist_ns = self.gathered_ns = self._relist_ns or now_ns + RELIST_NS
        while not is_gathering and self._may_send:
            waiting = self.backlog
            data, self._position, last_id, ids, sequences, group = next_frame(
                self._tables, self._position, FRAME_SIZE_GOOD, self._router.config.fetch_messages_max, self._group
            )
            self._definitions.passed(waiting - self.backlog)
            if data is not None:
                size = self._streaming.send(data)
                self._sent.append(_Sent(self._position, size, last_id, now_ns))
                self._unstored_size += size
                self._sent_ns = now_ns
                self._definitions.tell_due()
            if len(ids):
                reading = self._log.fetch(0, ids, sequences)
                self._fetching = reading.request
                told.append(reading)
            if group != self._group_sequence:
                self._group_sequence, self._group = group, None
            if group and self._group is None:
                self._fetching = self._log.new_request()
                told.append(ReadRecords(self._fetching, numpy.array([group], numpy.uint64)))
            if data is None:
                break
        if not self._is_listed:
            self._definitions.tell_due()
        if not self.backlog:
            self._replication.clear_awaited()
        if self.is_drained:
            self.through_id = self.newest_id
        if not self.is_whole and not self._is_listed:
            self._look_whether_whole()
        return told

    @property
    def _may_send(self) -> bool:
        return not self._is_listed and not self._fetching and self._unstored_size < self._config.window_bytes

    def _is_gathering(self, now_ns: int) -> bool:
        is_early = now_ns < self._sent_ns + GATHER_NS
        is_awaited = self._replication.is_stream_awaited or self._router.awaits_release
        return is_early and self.is_whole and not is_awaited

    def _look_whether_whole(self) -> None:
        """The other router has caught up when it has stored everything up to some moment, because new messages
        arrive all the time."""
        if self._caught_up is None and not self.backlog:
            self._caught_up = self._position
        if self._caught_up is not None and self._stored >= self._caught_up:
            self.is_whole = True
            self.out.append(encode(Whole(self._router.epoch)))
            self._definitions.become_whole()

    def fetched(self, event: RecordsRead) -> None:
        """Data was read from the journal, possibly for another request."""
        if event.request != self._fetching:
            return
        self._fetching = 0
        if self._group_sequence and not event.is_failed:
            found = [each for each in event.rows if each["sequence"] == self._group_sequence]
            data = bytes(event.data)
            self._group = data[found[0]["offset"] :][: found[0]["size"]] if found else b""
            # It was cleaned away, and its messages were logged again one by one: send them to the other router as such.
            if not is_transaction(self._group):
                self._replication.break_stream()


def left_behind(tables: Tables, endpoints: Endpoints) -> dict[str, int]:
    """By endpoint, the number of messages without copies: they are unavailable while the other router is active."""
    counts = {}
    for number, count in uncopied_counts(tables).items():
        if (endpoint := endpoints.by_number(number)) is not None:
            counts[endpoint.name] = count
    return dict(sorted(counts.items(), key=lambda each: -each[1])[:LEFT_MAX])
