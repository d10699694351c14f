"""Repeated refusals: the first is logged at once; further ones in the same second are counted and logged together."""

from typing import NamedTuple

from penstock.admin.core.administration import Caller
from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import PenstockError

ENTRIES_MAX = 4_096
OTHERS = "(others)"
"""Client name for refusals of clients beyond ENTRIES_MAX."""


class Repeated(NamedTuple):
    caller: Caller
    action: str
    error: PenstockError
    repeats: int
    since_ns: int


class Refusals:
    """Refusals of the current second, by client, action and code."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, str], Repeated] = {}

    def is_first(self, caller: Caller, action: str, error: PenstockError, now_ns: int) -> bool:
        """True if this refusal should be logged now; refusals that are not logged are counted."""
        key = (caller.client, action, error.code)
        if key not in self._entries and len(self._entries) >= ENTRIES_MAX:
            caller = caller._replace(client=OTHERS)
            key = (OTHERS, action, error.code)
        held = self._entries.get(key)
        repeats, since_ns = (held.repeats + 1, held.since_ns) if held is not None else (0, now_ns)
        self._entries[key] = Repeated(caller, action, error, repeats, since_ns)
        return held is None

    def take_due(self, now_ns: int) -> list[Repeated]:
        """Return the repeated refusals whose second is over, each with its last error."""
        due = [key for key, each in self._entries.items() if not 0 <= now_ns - each.since_ns < NS_PER_SECOND]
        taken = [self._entries.pop(key) for key in due]
        return [each for each in taken if each.repeats]
