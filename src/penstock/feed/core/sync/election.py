"""Election of the adapter that takes over when the active one is lost (SYNC-6, SYNC-8).

There is no vote. Each adapter ranks the adapters it is connected to and waits longer the lower its own rank is. Two
adapters that claim at once claim different terms, and the one with the lower term steps down.
"""

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.feed.config import SynchroniserConfig
from penstock.feed.core.sync.messages import AdapterState
from penstock.wire.term import Term

PATIENCE = 10
"""Factor of claim_ms that an unsynchronised adapter leaves to a synchronised one before it takes over itself."""


class Peer(msgspec.Struct):
    """Another adapter with a connected channel."""

    index: int
    heard_ns: int
    state: AdapterState | None = None


class Peers:
    """The other adapters and their last states."""

    def __init__(self, config: SynchroniserConfig) -> None:
        self._config = config
        self._peers: dict[int, Peer] = {}

    def connect(self, index: int, now_ns: int) -> None:
        self._peers[index] = Peer(index, now_ns)

    def disconnect(self, index: int) -> None:
        self._peers.pop(index, None)

    def __contains__(self, index: int) -> bool:
        return index in self._peers

    def heard(self, index: int, now_ns: int, state: AdapterState | None = None) -> None:
        peer = self._peers[index]
        peer.heard_ns = now_ns
        if state is not None:
            peer.state = state

    def indexes(self) -> list[int]:
        return list(self._peers)

    def online(self, now_ns: int) -> list[AdapterState]:
        """The states of the adapters that are in service and were heard within active_lost_ms."""
        return [
            peer.state
            for peer in self._peers.values()
            if peer.state is not None
            and peer.state.is_online
            and now_ns - peer.heard_ns < self._config.active_lost_ms * NS_PER_MS
        ]

    def introduction_ns(self, now_ns: int) -> int | None:
        """The time until which connected adapters that have not sent a state yet are waited for; None: every connected
        adapter has sent its state, or has been silent for active_lost_ms."""
        lost_ns = self._config.active_lost_ms * NS_PER_MS
        due_ns = [peer.heard_ns + lost_ns for peer in self._peers.values() if peer.state is None]
        return max((each for each in due_ns if each > now_ns), default=None)

    def silence_ns(self, index: int) -> int | None:
        """The time at which the peer counts as lost if it stays silent."""
        peer = self._peers.get(index)
        return None if peer is None else peer.heard_ns + self._config.active_lost_ms * NS_PER_MS

    def hears_active(self, term: int, now_ns: int) -> bool:
        """True if this adapter is connected to the active one of the term."""
        active = Term.of(term).claimant
        return any(state.index == active and state.is_active and state.term == term for state in self.online(now_ns))


def claim_delay_ns(
    mine: AdapterState, others: list[AdapterState], config: SynchroniserConfig, *, is_whole: bool = False
) -> int | None:
    """Return the time from the loss of the active adapter until this one takes over; None: it does not. `is_whole`
    means that this adapter lacks no message, but is in a session that the active adapter had not begun."""
    if not mine.term:
        ahead = sum(other.index < mine.index for other in others)
        return None if ahead else 0
    if not mine.is_synchronised and not is_whole and config.without_synchronised == "wait":
        return None
    ahead = sum(_order(other) < _order(mine) for other in others)
    is_last_resort = not mine.is_synchronised and any(other.is_synchronised for other in others)
    return (ahead + PATIENCE * is_last_resort) * config.claim_ms * NS_PER_MS


def _order(state: AdapterState) -> tuple[bool, int, int]:
    """Sort key: the first adapter takes over."""
    return not state.is_synchronised, -state.health, state.index


def goes_offline(mine: AdapterState, others: list[AdapterState], config: SynchroniserConfig) -> bool:
    """True if a backup that cannot synchronise should leave service."""
    scores = [other.health for other in others if not other.is_active]
    if not scores:
        return False
    return mine.health < (min(scores) if config.offline == "lowest" else max(scores))
