"""The standby's side of a link: it stores the active router's records, and confirms them."""

from collections import deque

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.assured.core.pair._matching import Unmatched
from penstock.assured.core.pair._receiving import (
    apply_records,
    are_synchronous,
    check_publishers,
    held_ids,
    resolve,
    take_publishers,
    undo,
    undone_ids,
)
from penstock.assured.core.pair.id_lists import IDS_PER_FRAME, distinct, ids_frame, read_ids
from penstock.assured.core.pair.protocol import Defined, Lacking, PairConfig, Resync, StoredTo, encode
from penstock.assured.core.pair.transaction_stream import HeldTransactions
from penstock.assured.core.router._settling import drop
from penstock.assured.core.router.endpoints import EVERY_ID, NUMBER_MAX, Definition, Endpoint
from penstock.assured.core.router.log import EPOCH_BITS
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire import _layout as layout
from penstock.base.decoding import DECODE_ERRORS
from penstock.base.errors import LimitError, PenstockError, RemoteProtocolError

RECEIVED_KINDS = frozenset(
    {layout.KIND_LIVE, layout.KIND_PUBLISHERS, layout.KIND_RECORDS, layout.KIND_TOGETHER, layout.KIND_SPLICED}
)
IDS_MAX = 2**27
PUBLISHERS_SIZE_MAX = 2**26
NONE = numpy.zeros(0, numpy.uint64)


class MatchesDifferError(RemoteProtocolError):
    """This router has found other endpoints for a message than the active one."""


class ReplicationReceiver:
    """`out` has the messages to send."""

    def __init__(self, router: MessageRouter, config: PairConfig, resync: Resync, is_first: bool) -> None:
        self.out: list[bytes] = []
        self.epoch = resync.epoch
        self.id_highest = 0
        """The highest id listed or sent here, including messages without copies."""
        self.is_whole = False
        """This router has everything, and stores records as they arrive."""
        self.stranded = 0
        self.dropped = 0
        self.held = HeldTransactions()
        self._router = router
        self._tables = router.tables
        self._log = router.log
        self._endpoints = router.endpoints
        self._is_mirroring = config.mirror != "none"
        self._stream = resync.stream
        self._since = (resync.since_id, resync.since_epoch << EPOCH_BITS)
        self._parity = int(is_first)
        self.lacking: dict[int, str] = {}
        """Endpoints that the active router replicates and that are missing here, or not replicated here; by its
        numbers."""
        self._names: dict[int, str] = {}
        """By the active router's number: the replicated endpoints."""
        self._told_lacking: list[int] = []
        self._looked_at = -1
        """Counter of endpoint changes at the last check for lacking ones."""
        self._numbers = numpy.zeros(64, numpy.uint32)
        """By the active router's number: the number here, or 0."""
        self._there: NDArray[numpy.uint32] | None = None
        """By number here: the active router's number, or 0; None: unknown."""
        self._listed: dict[int, list[NDArray[numpy.uint64]]] = {}
        self._listed_count = 0
        self._publishers: list[bytes] = []
        self._publishers_size = 0
        self._gone: dict[int, NDArray[numpy.uint64]] = {}
        self._shared: set[int] = set()
        """Endpoints that have only messages which the active router has too."""
        self._missing = NONE
        self._own_end = 0
        """At the comparison, ids from here on did not belong to this router."""
        self._is_listed = True
        self._answers: deque[tuple[int, list[bytes]]] = deque()
        """Messages to send when the record of this number is on the disk."""

    def frame(self, data: bytes) -> None:
        match data[0]:
            case layout.KIND_LIVE:
                number, _, ids = read_ids(data)
                self.live(number, ids)
            case layout.KIND_PUBLISHERS:
                self.publishers(data)
            case layout.KIND_RECORDS:
                self.records(data)
            case layout.KIND_TOGETHER:
                self.held.together(data)
            case _:
                self.records(self.held.joined(data))

    def become_whole(self) -> None:
        if self._is_listed:
            raise RemoteProtocolError("the active router reports completion before its list has ended")
        self.is_whole = True

    def define(self, message: Defined) -> str:
        """Define an endpoint of the active router: create it, or find it by name. Return its name if it differs
        here."""
        if message.number > NUMBER_MAX:
            raise RemoteProtocolError(f"invalid endpoint number {message.number}")
        self._there, self._looked_at = None, -1
        while message.number >= len(self._numbers):
            self._numbers = numpy.concatenate([self._numbers, numpy.zeros_like(self._numbers)])
        endpoints = self._endpoints
        if message.is_deleted:
            known = endpoints.by_number(int(self._numbers[message.number]))
            self._numbers[message.number] = 0
            self._names.pop(message.number, None)
            if known is not None and self._is_mirroring:
                endpoints.log(known, is_deleted=True)
                endpoints.remove(known)
                if known.definition.replay is not None:
                    self._router.resume_replays()
            return ""
        try:
            definition = msgspec.json.decode(message.definition, type=Definition)
        except (*DECODE_ERRORS, PenstockError) as error:
            raise RemoteProtocolError(f"invalid definition of an endpoint: {error}") from None
        known = endpoints.get(definition.config.name)
        is_copied = endpoints.is_copied(definition.config)
        if is_copied:
            self._names[message.number] = definition.config.name
        # an endpoint without copies here is not the one that the copies belong to
        if is_copied and not self._is_mirroring:
            known = self._copied(definition.config.name)
        if known is not None and known.definition.own_through == EVERY_ID:  # from now on the active router has it, too
            endpoints.set_own_through(known, self._highest(known))
        own_before = known.definition.own_through if known is not None else 0
        definition.own_through = endpoints.own_through_as(definition.config)
        if self._is_mirroring and (known is None or known.definition != definition):
            if known is not None and definition.config.replication == "none":
                self._drop_copies(known)
            is_filling = definition.replay is not None or (known is not None and known.definition.replay is not None)
            known = endpoints.put(definition, known.number if known is not None else endpoints.number_highest + 1)
            if definition.own_through != own_before:  # copies follow: later ones do not belong to this router alone
                definition.own_through = self._highest(known)
                endpoints.apply(known)
            endpoints.log(known)
            if is_filling:
                self._router.resume_replays()
        self._numbers[message.number] = known.number if known is not None else 0
        return "" if known is not None and known.config == definition.config else definition.config.name

    def _copied(self, name: str) -> Endpoint | None:
        """The endpoint of this name, if it has copies here too."""
        known = self._endpoints.get(name)
        return known if known is not None and self._endpoints.is_copied(known.config) else None

    def _highest(self, endpoint: Endpoint) -> int:
        """The newest replicated message of the endpoint."""
        ids = held_ids(self._tables).get(endpoint.number, NONE)
        return int(ids[-1]) if len(ids) else 0

    def _drop_copies(self, endpoint: Endpoint) -> None:
        """Drop copies of an endpoint that is no longer replicated, because their changes would not be sent; keep
        messages that only this router has."""
        if self._router.config.replicate_by == "endpoint" and endpoint.config.replication != "none":
            ids = held_ids(self._tables).get(endpoint.number, NONE)
            drop(self._tables, endpoint.number, ids[~self._stranded(endpoint.number, ids)])

    def live(self, number: int, ids: NDArray[numpy.uint64]) -> None:
        self._listed_count += len(ids)
        if not self._is_listed or self._listed_count > IDS_MAX:
            raise RemoteProtocolError(f"{self._listed_count} listed messages: too many, or after the list's end")
        if number < len(self._numbers) and self._numbers[number]:
            self._listed.setdefault(int(self._numbers[number]), []).append(ids)

    def publishers(self, data: bytes) -> None:
        self._publishers_size += len(data)
        if not self._is_listed or self._publishers_size > PUBLISHERS_SIZE_MAX:
            size = self._publishers_size
            raise RemoteProtocolError(f"{size} bytes of listed publishers: too many, or after the list's end")
        check_publishers(data)
        self._publishers.append(data)

    @property
    def has_doubts(self) -> bool:
        """True if this router has executed transactions that the active one may lack."""
        return bool(self._tables.replication.consumed)

    def resolve(self) -> None:
        """Confirm the transactions that the active router has; confirm all of them if that router took over by an
        operator's order while this router was degraded."""
        resolve(self._tables, EVERY_ID if self._log.is_degraded else self._since[0])

    def compare(self, id_highest: int) -> bool:
        """All messages up to this one were listed. Find obsolete and missing messages. True if there are any."""
        if not self._is_listed:
            raise RemoteProtocolError("the active router ends its list twice")
        if id_highest >> EPOCH_BITS > self.epoch:
            raise RemoteProtocolError(f"message {id_highest} is listed, of an epoch after {self.epoch}")
        self._is_listed = False
        self.id_highest = id_highest
        tables = self._tables
        self._own_end = tables.next_id
        held = held_ids(tables)
        missing = [NONE]
        for number in self._numbers[self._numbers > 0].tolist():
            has = held.get(number, NONE)
            listed = distinct(self._listed.get(number, [NONE]))
            gone = numpy.setdiff1d(has, listed, assume_unique=True)
            self._note_gone(number, gone)
            if not (gone <= self._own_through(number)).any():
                self._shared.add(number)
            missing.append(numpy.setdiff1d(listed, has, assume_unique=True))
        self._listed.clear()
        if self._is_mirroring:
            for endpoint in self._unlisted():
                self._note_gone(endpoint.number, held.get(endpoint.number, NONE))
        if not self._log.is_degraded:  # also without replication
            for number, ids in undone_ids(tables, *self._since).items():
                self._gone[number] = numpy.union1d(self._gone.get(number, NONE), ids[self._are_own(ids)])
        self._missing = distinct(missing)
        return bool(self._gone) or len(self._missing) > 0

    def answer(self) -> None:
        """Drop obsolete messages, take over the publishers' state, and request missing messages. While the disk is
        full, dropping must make room and nothing is requested: the next list is answered."""
        tables, wanted = self._tables, self._missing
        for number, ids in self._gone.items():
            drop(tables, number, ids)
        if self._log.is_pressed:
            return
        take_publishers(tables, self._publishers, any(not self._numbers[each] for each in self._names))
        self._publishers.clear()
        if self._is_mirroring:
            self._remove_unlisted()
        first_id = max(self._since[0] + 1, (2 - self._parity) << EPOCH_BITS)
        if not self._log.is_degraded and first_id < min(self._since[1], self._own_end):
            undo(tables, first_id, self._since[1] - 1)
        self._note_own()
        starts = range(0, max(1, len(wanted)), IDS_PER_FRAME)
        frames = [
            ids_frame(
                layout.KIND_MISSING, self._stream, wanted[start : start + IDS_PER_FRAME], is_last=start == starts[-1]
            )
            for start in starts
        ]
        self._answers.append((self._log.newest_sequence, frames))

    def _note_own(self) -> None:
        """Mark messages of this router as its own: the active one may create an endpoint that it lacks, without the
        messages here; in other endpoints, messages that only this router had may be gone by now."""
        endpoints, known = self._endpoints, set(self._numbers.tolist())
        for each in endpoints:
            if each.number not in known:
                endpoints.set_own_through(each, EVERY_ID)
            elif each.number in self._shared:
                endpoints.set_own_through(each, 0)

    def _note_gone(self, number: int, gone: NDArray[numpy.uint64]) -> None:
        gone = gone[~self._stranded(number, gone)]
        if len(gone):
            self.dropped += len(gone)
            self._gone[number] = gone

    def _unlisted(self) -> list[Endpoint]:
        """Endpoints that were deleted while this router was disconnected."""
        known = set(self._numbers[self._numbers > 0].tolist())
        own = {each.name for each in self._router.config.endpoints}
        return [each for each in self._endpoints if each.number not in known and each.name not in own]

    def _remove_unlisted(self) -> None:
        """Remove unlisted endpoints, except those with messages that only this router has."""
        endpoints = self._endpoints
        for each in self._unlisted():
            if not self._tables.endpoint_numbers(each.number)["messages"] and not endpoints.takes_dead_of(each):
                endpoints.log(each, is_deleted=True)
                endpoints.remove(each)

    def _stranded(self, number: int, ids: NDArray[numpy.uint64]) -> NDArray[numpy.bool_]:
        """Select the ids of an endpoint that stay, although the other router lacks them: it never had them, and they
        may have been acknowledged. Synchronous ones only if this router was degraded then, or the other one had no
        copies of the endpoint."""
        is_stranded: NDArray[numpy.bool_] = self._are_own(ids) & (ids > self._since[0]) & (ids < self._since[1])
        if not self._log.is_degraded:
            is_stranded &= ~are_synchronous(self._tables, ids)
        is_stranded |= ids <= self._own_through(number)
        self.stranded += int(is_stranded.sum())
        return is_stranded

    def _own_through(self, number: int) -> int:
        endpoint = self._endpoints.by_number(number)
        return endpoint.definition.own_through if endpoint is not None else 0

    def _are_own(self, ids: NDArray[numpy.uint64]) -> NDArray[numpy.bool_]:
        """True for ids of epochs of this router."""
        is_own: NDArray[numpy.bool_] = ids >> numpy.uint64(EPOCH_BITS) & numpy.uint64(1) == self._parity
        return is_own

    def look_what_lacks(self) -> None:
        """Report the endpoints that are missing here, once all are listed and after changes. An endpoint created
        after the active router had named it is lacking, because this stream does not fill it; when it is no longer
        lacking, the routers compare again."""
        endpoints = self._endpoints
        if self._is_listed or self._looked_at == endpoints.changes:
            return
        self._looked_at = endpoints.changes
        found = {number: self._copied(name) for number, name in self._names.items()}
        self.lacking = {number: self._names[number] for number, known in found.items() if known is None}
        without_copies = [n for n, known in found.items() if known is None or known.number != self._numbers[n]]
        for numbers in (sorted(without_copies), sorted(self.lacking)):
            if numbers != self._told_lacking:
                self._told_lacking = numbers
                self.out.append(encode(Lacking(self._stream, numbers)))

    def records(self, data: bytes) -> None:
        if self._is_listed:
            raise RemoteProtocolError("the active router sends records before its list has ended")
        if self._log.is_pressed:
            raise LimitError("the standby's disk is full: it accepts records again when settlements have made room")
        position, id_highest = apply_records(self._tables, self._matched(data), self._numbers)
        self.id_highest = max(self.id_highest, id_highest)
        self._answers.append((self._log.newest_sequence, [encode(StoredTo(self._stream, position))]))

    def _matched(self, data: bytes) -> bytes:
        """Add the endpoints of every message (REPL-4)."""
        unmatched = Unmatched(data)
        if not len(unmatched):
            return data
        if self._there is None:
            self._there = _inverse(self._numbers)
        matcher = self._endpoints.matcher
        offsets, subscribers = matcher.match_messages(unmatched)
        found = unmatched.matched(self._tables, offsets, subscribers, matcher.owners, self._there)
        if found is None:
            raise MatchesDifferError(
                "the routers match a message with different endpoints: compare endpoints and models of the two"
            )
        return found

    def stored(self, through: int) -> None:
        newest: list[bytes] = []
        while self._answers and self._answers[0][0] <= through:
            _, frames = self._answers.popleft()
            if len(newest) == 1 and newest[0][4] >= 0x80:
                newest.clear()  # the next answer covers it, too
            newest += frames
        self.out += newest


def _inverse(numbers: NDArray[numpy.uint32]) -> NDArray[numpy.uint32]:
    inverse = numpy.zeros(int(numbers.max()) + 1, numpy.uint32)
    inverse[numbers] = numpy.arange(len(numbers), dtype=numpy.uint32)
    inverse[0] = 0
    return inverse
