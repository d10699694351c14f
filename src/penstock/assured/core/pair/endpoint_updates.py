"""Changes of endpoints for the other router of a pair, and the time at which they are sent.

Definitions are sent at once. Deletions, and fills from the log, are sent in order with the stream: after its current
items.
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
    """The other router's knowledge of an endpoint."""

    config: EndpointConfig
    is_copied: bool
    definition: bytes


class _Later(msgspec.Struct, frozen=True):
    """An endpoint update that must wait until earlier items of the stream have been sent."""

    after: int
    """Number of stream items to send before."""

    name: str
    message: Defined


class EndpointUpdates:
    """`out` has the messages to send; `is_matching`: the other router matches messages itself."""

    def __init__(self, tables: Tables, endpoints: Endpoints, out: list[bytes], *, is_matching: bool) -> None:
        self._tables = tables
        self._replication = tables.replication
        self._endpoints = endpoints
        self._out = out
        self._is_matching = is_matching
        self._defined: dict[int, _Told] = {}
        self._later: deque[_Later] = deque()
        self._changes = -1
        """Counter of endpoint changes at the last check."""
        self._passed = 0
        """Number of stream items that were sent."""
        self.absent: dict[int, str] = {}
        """Endpoints that the other router lacks, by number."""
        self._is_outdated = False
        """True if the other router now has some of these: the routers must compare again."""
        self._noted: list[Instruction] = []

    @property
    def is_waiting(self) -> bool:
        """True if updates are waiting."""
        return bool(self._later)

    @property
    def _backlog(self) -> int:
        return self._replication.backlog

    def passed(self, count: int) -> None:
        """Count further stream items that were sent."""
        self._passed += count

    def mirror(self) -> bool:
        """Send new definitions. Messages accepted before are sent with their endpoints, because the other router
        matches with its definitions at their arrival. False: the routers must compare again."""
        if self._is_outdated or self._changes == self._endpoints.changes:
            return not self._is_outdated
        self._changes = self._endpoints.changes
        current = {each.number: self._told(each) for each in self._endpoints}
        new = {number: told for number, told in current.items() if self._defined.get(number) != told}
        # Moved messages of an endpoint may wait to be sent, and the copies that it has remain. The same holds for fills
        # from the log: the other router has to continue at the position that it has.
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
        definition = msgspec.structs.replace(endpoint.definition, own_through=0)  # own_through belongs to each router
        return _Told(endpoint.config, is_copied, msgspec.json.encode(definition))

    def _is_same(self, number: int, told: _Told) -> bool:
        """True if they are equal except for the position of the fill."""
        return self._defined[number].config == told.config

    def _must_compare(self, new: dict[int, _Told]) -> bool:
        """True if an endpoint has gained or lost its copies, or if an older update for this name is waiting that
        would arrive after this one."""
        names = {each.name for each in self._later}
        known = {number: self._defined[number] for number in new if number in self._defined}
        is_copied_otherwise = any(new[number].is_copied != told.is_copied for number, told in known.items())
        return is_copied_otherwise or any(told.config.name in names for told in new.values())

    def _match_from_now(self) -> None:
        """Let the other router match messages from now on, unless it still has deleted endpoints."""
        is_matching = self._is_matching and not any(each.message.is_deleted for each in self._later)
        self._replication.set_match_from(self._tables.next_id if is_matching else 0)

    def _tell_later(self, name: str, message: Defined) -> None:
        self._later.append(_Later(self._passed + self._backlog, name, message))

    def tell_due(self) -> None:
        """Send waiting updates whose time has come."""
        while self._later and (self._later[0].after <= self._passed or not self._backlog):
            message = self._later.popleft().message
            self._out.append(encode(message))
            if message.is_deleted:
                self._match_from_now()

    # Endpoints that the other router lacks

    def lacks(self, numbers: list[int]) -> None:
        """Messages of endpoints that the other router lacks are at this router only (REPL-3), until it has them."""
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
        """The other router has all messages of the replicated endpoints."""
        endpoints = self._endpoints
        for each in endpoints:
            if each.number not in self.absent and endpoints.is_copied(each.config):
                endpoints.set_own_through(each, 0)
