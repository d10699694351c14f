"""What the other router of a pair is told of endpoints, and when.

How an endpoint is defined goes at once. That it is deleted, or filled further out of the log, goes in its turn: after
what the stream had by then.
"""

from collections import deque

import msgspec

from penstock.assured.config import EndpointConfig
from penstock.assured.core.pair._sending import has_uncopied
from penstock.assured.core.pair.protocol import Defined, encode
from penstock.assured.core.router._mirroring import set_absent
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoints import EVERY_ID, Endpoint, Endpoints
from penstock.assured.core.router.events import Instruction, Noted


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


class EndpointUpdates:
    """`out` is what is to be sent; `is_matching`: the other router finds out who wants a message."""

    def __init__(self, tables: Tables, endpoints: Endpoints, out: list[bytes], *, is_matching: bool) -> None:
        self._tables = tables
        self._replication = tables.replication
        self._endpoints = endpoints
        self._out = out
        self._is_matching = is_matching
        self._defined: dict[int, _Told] = {}
        self._later: deque[_Later] = deque()
        self._changes = -1
        """Of endpoints, as far as they were looked at."""
        self._passed = 0
        """Items of the stream whose turn has come."""
        self.absent: dict[int, str] = {}
        """Endpoints that the other router has not got, by number."""
        self._is_outdated = False
        """It has got some of these by now: what there is has to be compared anew."""
        self._noted: list[Instruction] = []

    @property
    def is_waiting(self) -> bool:
        """Whether something is still to be told."""
        return bool(self._later)

    @property
    def _backlog(self) -> int:
        return self._replication.backlog

    def passed(self, count: int) -> None:
        """So many more items of the stream have had their turn."""
        self._passed += count

    def mirror(self) -> bool:
        """Tell how endpoints are defined, as far as that is not known. What was accepted before goes with its
        endpoints: the other router finds those that there are when it comes. False: it has to be compared anew what
        there is."""
        if self._is_outdated or self._changes == self._endpoints.changes:
            return not self._is_outdated
        self._changes = self._endpoints.changes
        current = {each.number: self._told(each) for each in self._endpoints}
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
                self._out.append(encode(Defined(number, told.definition)))
        for number in gone:
            self._tell_later(self._defined[number].config.name, Defined(number, b"", is_deleted=True))
        self._defined = current
        if gone or len(new) > len(filled):
            self._match_from_now()
        return True

    def _told(self, endpoint: Endpoint) -> _Told:
        is_copied = self._endpoints.is_copied(endpoint.config)
        definition = msgspec.structs.replace(endpoint.definition, own_through=0)  # that is each router's own matter
        return _Told(endpoint.config, is_copied, msgspec.json.encode(definition))

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
        self._replication.set_match_from(self._tables.next_id if is_matching else 0)

    def _tell_later(self, name: str, message: Defined) -> None:
        self._later.append(_Later(self._passed + self._backlog, name, message))

    def tell_due(self) -> None:
        """What was to be told later, and whose turn has come."""
        while self._later and (self._later[0].after <= self._passed or not self._backlog):
            message = self._later.popleft().message
            self._out.append(encode(message))
            if message.is_deleted:
                self._match_from_now()

    # What the other router has not got

    def lacks(self, numbers: list[int]) -> None:
        """What the other router has no endpoints for is at this one only (REPL-3), until it has them."""
        endpoints = self._endpoints
        found = [endpoint for each in numbers if (endpoint := endpoints.by_number(each)) is not None]
        for each in found:
            endpoints.set_own_through(each, EVERY_ID)
            if each.number not in self.absent:
                values: dict[str, str | int] = {"endpoint": each.name, "hint": "define it alike there"}
                self._noted.append(Noted("not_at_other_router", values, is_trouble=True))
        set_absent(self._tables, [each.number for each in found])
        if has_uncopied(self._tables):
            self._replication.note_absent_met()
        before, self.absent = self.absent, {each.number: each.name for each in found}
        self._is_outdated = any(endpoints.by_number(each) is not None for each in before.keys() - self.absent.keys())

    def take_noted(self) -> list[Instruction]:
        noted, self._noted = self._noted, []
        return noted

    def become_whole(self) -> None:
        """The other router has all that there is, of the endpoints that have copies."""
        endpoints = self._endpoints
        for each in endpoints:
            if each.number not in self.absent and endpoints.is_copied(each.config):
                endpoints.set_own_through(each, 0)
