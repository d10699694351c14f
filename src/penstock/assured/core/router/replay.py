"""Filling a new endpoint from the log (REPL-13).

An endpoint that begins in the past is queued new messages like any other, but delivers none of them before the earlier
ones. The log is read twice. Messages that cleaning logged again are older than all others, and unordered: they are
queued first. The others follow, in the order of their ids, as fast as the endpoint's consumers read. Meanwhile cleaning
is suspended.
"""

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.assured.config import RouterConfig
from penstock.assured.core.router._records import TREATMENT_SYNC
from penstock.assured.core.router._recovery import messages_in, replay_into
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoints import ROW_DTYPE, Endpoint, Endpoints, ReplayState
from penstock.assured.core.router.events import Instruction, Noted, ReadRecords, RecordsRead
from penstock.assured.core.router.log import EPOCH_BITS, Log

WAITING_MAX = 1_024
"""Number of messages from the log that wait in an endpoint, independent of its limits."""


class _Filling(msgspec.Struct):
    endpoint: Endpoint
    state: ReplayState
    until: int
    """The last record that may have relevant messages."""
    after: int = 0
    """The last record that was checked."""
    first_id: int = 0
    """Of the oldest message in the log as accepted; 0: none found yet."""
    request: int = 0
    is_again: bool = False
    """The found messages may have been delivered: by this router before its start, or by the other one of its pair."""


class Replays:
    def __init__(self, config: RouterConfig, tables: Tables, endpoints: Endpoints, log: Log) -> None:
        self._config = config
        self._tables = tables
        self._endpoints = endpoints
        self._log = log
        self._fillings: dict[int, _Filling] = {}
        """By the number of the endpoint."""

    def take_over(self) -> None:
        """Continue fills that the other router began, which may have progressed further than this router knows."""
        self.resume()
        for filling in self._fillings.values():
            filling.is_again = True

    def resume(self) -> None:
        """Continue fills from the log or from the other router; or begin with a new endpoint."""
        for number, filling in list(self._fillings.items()):
            endpoint = self._endpoints.by_number(number)
            if endpoint is None or endpoint.definition.replay is not filling.state:
                del self._fillings[number]
        for endpoint in self._endpoints:
            state = endpoint.definition.replay
            if state is not None and endpoint.number not in self._fillings:
                self._fillings[endpoint.number] = _Filling(endpoint, state, self._tables.log.next_sequence - 1)
        self._log.hold(bool(self._fillings))

    def step(self) -> list[Instruction]:
        """Read on for endpoints with room."""
        found: list[Instruction] = []
        for number, filling in list(self._fillings.items()):
            if self._endpoints.by_number(number) is not filling.endpoint:
                del self._fillings[number]
                continue
            if filling.request or filling.after > self._log.stored_through:
                continue
            if filling.state.phase == "logged" and self._waiting(number) >= WAITING_MAX:
                continue
            filling.request = self._log.new_request()
            found.append(
                ReadRecords(
                    filling.request,
                    numpy.empty(0, numpy.uint64),
                    after=filling.after,
                    bytes_max=self._config.fetch_bytes_max,
                )
            )
        self._log.hold(bool(self._fillings))
        return found

    def _waiting(self, number: int) -> int:
        return self._tables.endpoint_numbers(number)["replayed"]

    def records_read(self, event: RecordsRead) -> list[Instruction] | None:
        """Handle read records; None: they were read for another request."""
        filling = next((each for each in self._fillings.values() if each.request == event.request), None)
        if filling is None:
            return None
        filling.request = 0
        if event.is_failed:
            return []
        if len(event.rows):
            self._take(filling, bytes(event.data), event.rows)
            filling.after = int(event.rows[-1]["sequence"])
        if len(event.rows) and filling.after < filling.until:
            return []
        return self._end_phase(filling)

    def _take(self, filling: _Filling, data: bytes, rows: NDArray[numpy.void]) -> None:
        messages = messages_in(data, rows)
        if not len(messages):
            return
        state = filling.state
        is_moved = messages["is_moved"] == 1
        if not filling.first_id and not is_moved.all():
            filling.first_id = int(messages["id"][~is_moved][0])
        is_wanted = (messages["id"] < state.live_from) & (messages["id"] >= state.message_id)
        is_wanted &= messages["published_ns"] >= state.time_ns
        if state.phase == "moved":
            is_wanted &= is_moved & (messages["id"] < (filling.first_id or state.live_from))
        else:
            is_wanted &= ~is_moved & (messages["id"] > state.through)
        messages = messages[is_wanted & ~self._are_undone(messages)]
        messages = messages[self._matches(filling.endpoint, data, messages)]
        if not len(messages):
            return
        offsets = numpy.ascontiguousarray(messages["offset"])
        replay_into(self._tables, filling.endpoint.number, data, offsets, filling.is_again)
        if state.phase == "logged":
            state.through = int(messages["id"].max())
            self._endpoints.log(filling.endpoint)

    def _are_undone(self, messages: NDArray[numpy.void]) -> NDArray[numpy.bool_]:
        """Select the messages that this router took and its successor never had: they were never acknowledged."""
        is_undone = numpy.zeros(len(messages), numpy.bool_)
        ids, epochs = messages["id"], messages["id"] >> numpy.uint64(EPOCH_BITS)
        for first, last in self._tables.replication.undone:
            is_own = epochs & numpy.uint64(1) == first >> EPOCH_BITS & 1
            is_undone |= (ids >= first) & (ids <= last) & is_own
        is_undone &= messages["treatment"] == TREATMENT_SYNC
        return is_undone

    def _matches(self, endpoint: Endpoint, data: bytes, messages: NDArray[numpy.void]) -> NDArray[numpy.bool_]:
        rows = numpy.empty(len(messages), ROW_DTYPE)
        for name in ROW_DTYPE.names or ():
            rows[name] = messages[name]
        matcher = self._endpoints.matcher
        offsets, subscribers = matcher.match(
            data,
            numpy.ascontiguousarray(messages["topic_offset"]),
            numpy.ascontiguousarray(messages["topic_size"]),
            lambda: rows,
        )
        is_ours = numpy.concatenate([[0], numpy.cumsum(matcher.owners[subscribers] == endpoint.number)])
        counts: NDArray[numpy.bool_] = is_ours[offsets[1:]] > is_ours[offsets[:-1]]
        return counts

    def _end_phase(self, filling: _Filling) -> list[Instruction]:
        endpoint = filling.endpoint
        if filling.state.phase == "moved":
            filling.state.phase, filling.after, filling.first_id = "logged", 0, 0
            self._endpoints.apply(endpoint)
            self._endpoints.log(endpoint)
            return []
        del self._fillings[endpoint.number]
        endpoint.definition.replay = None
        self._endpoints.apply(endpoint)
        self._endpoints.log(endpoint)
        return [Noted("filled", {"endpoint": endpoint.name, "messages": self._waiting(endpoint.number)})]
