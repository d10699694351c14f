"""Authentication of packets: the keys of each scope, who holds them, and the publishers and epochs vouched for.

A scope is a feed, the stream of a client's publisher, or PUBLISHERS for publishers without either. A key is created
when the scope's first publisher registers. When a holder loses its right, all other holders get the next key (pending).
It becomes active when all of them have confirmed it, and the previous key is dropped when all have confirmed the
activation: packets in flight are not lost. The same is done when an adapter has been silent for too long
(rotate_silent). Each step takes at least `key_grace_s` and at most `key_rotation_s`, even if a holder confirms nothing,
so the former holder's key is useless after twice `key_rotation_s`, and usually after twice `key_grace_s`. A holder
confirms an event by asking for later ones (EventReaders).
"""

from collections.abc import Callable, Iterable

import msgspec

from penstock.admin.config import AdminLimits
from penstock.admin.core.client_grants import ClientGrants
from penstock.admin.core.feeds import Feeds
from penstock.admin.core.publisher_streams import EPOCH, PublisherStreams
from penstock.admin.core.readers import EventReaders
from penstock.admin.core.records import AuthenticationKeyRecord, KeyState
from penstock.admin.core.state import State
from penstock.base.clock import NS_PER_SECOND
from penstock.base.limits import EPOCH_MAX
from penstock.security.core.authentication import PUBLISHERS, is_publisher_scope
from penstock.security.core.brokering import Authentication, AuthenticationChanged, Vouched
from penstock.security.core.sealing import KEY_SIZE, StreamKey

EPOCHS_AHEAD = 16
"""Number of future epochs that are accepted in advance: restarts of a publisher while no server answers."""


class StreamAuthentication:
    """`issuer` names the lineage of the server's state: only numbers of the same issuer are comparable."""

    def __init__(
        self,
        state: State,
        limits: AdminLimits,
        random: Callable[[int], bytes],
        feeds: Feeds,
        publisher_streams: PublisherStreams,
        rights: ClientGrants,
        readers: EventReaders,
        issuer: str,
    ) -> None:
        self._state = state
        self._limits = limits
        self._random = random
        self._feeds = feeds
        self._publisher_streams = publisher_streams
        self._rights = rights
        self._readers = readers
        self._issuer = issuer

    def hand_out(self, client: str, scope: str, now_ns: int) -> Authentication:
        """The current state of the scope, for a client that may have its keys; the server records the holders."""
        if not self._keys(scope):
            self._make_key(scope, "active", self._filters(), now_ns)
        for name, each in self._keys(scope).items():
            if client not in each.holders:
                self._put(name, msgspec.structs.replace(each, holders=(*each.holders, client)))
        return self._told(scope, self._state.meta.event_number)

    def scopes(self) -> list[str]:
        """All scopes with keys, or with publishers whose packets need keys."""
        held = {each.key.feed for each in self._state.authentication_keys.values()}
        return sorted({*held, *self._feeds.names(), *self._publisher_streams.scopes(), PUBLISHERS})

    def may_hold(self, client: str, scope: str, now_ns: int) -> bool:
        entry = self._rights.policy.clients.get(client)
        if entry is None or (entry.expires_ns is not None and entry.expires_ns <= now_ns):
            return False
        if "filter" in entry.roles or client in self._feeds.clients(scope):
            return True
        if scope == PUBLISHERS:
            return self._rights.may_publish(client, now_ns) or self._rights.has_live_data(client, now_ns)
        if is_publisher_scope(scope):
            publisher = self._publisher_streams.publisher(scope)
            grants = self._rights.grants(client, now_ns)
            return publisher is not None and self._publisher_streams.may_hold(client, grants, publisher)
        return self._feeds.has_multicast(client, scope, now_ns)

    def tell_of_publishers(self, feed: str, now_ns: int) -> None:
        """Notify filters and adapters that the publishers of a feed or their epochs have changed. An adapter that has
        just registered is notified as well, because other processes may use the same credentials. Subscribers get a
        `moved` event."""
        self._tell(feed, {*self._rights.policy.filters(), *self._feeds.clients(feed)}, now_ns)

    def tell(self, scope: str, now_ns: int) -> None:
        """Send the current state of the scope to all holders of its newest key."""
        self._tell(scope, None, now_ns)

    def _tell(self, scope: str, only: set[str] | None, now_ns: int) -> None:
        keys = self._keys(scope)
        if not keys:
            return
        newest = max(keys.values(), key=lambda each: each.key.key_id)
        event = AuthenticationChanged(authentication=self._told(scope, self._state.meta.event_number + 1))
        for client in newest.holders:
            if only is None or client in only:
                self._state.notify(client, event, now_ns)

    def rotate_lost(self, now_ns: int) -> list[str]:
        """Create new keys for scopes in which a holder lost its right, and notify the former holder to drop its keys;
        returns the scopes.
        """
        rotated = []
        for scope in self.scopes():
            keys = self._keys(scope)
            if not keys:
                continue
            newest = max(keys.values(), key=lambda each: each.key.key_id)
            entitled = tuple(each for each in newest.holders if self.may_hold(each, scope, now_ns))
            if len(entitled) < len(newest.holders):
                self._rotate(scope, entitled, now_ns)
                self._take_back(scope, (each for each in newest.holders if each not in entitled), now_ns)
                rotated.append(scope)
        return rotated

    def rotate_silent(self, now_ns: int) -> list[str]:
        """Create new keys for feeds with an adapter that has been silent for too long: a host without a key could send
        its recorded packets to receivers that have just started. Returns the feeds."""
        rotated = []
        for feed in sorted(self._feeds.newly_silent(now_ns)):
            keys = self._keys(feed)
            if keys and all(each.state != "pending" for each in keys.values()):
                newest = max(keys.values(), key=lambda each: each.key.key_id)
                self._rotate(feed, newest.holders, now_ns)
                rotated.append(feed)
        return rotated

    def _rotate(self, scope: str, holders: tuple[str, ...], now_ns: int) -> None:
        """Create the next key of a scope, and tell its holders."""
        since_ns = now_ns
        for name, each in self._keys(scope).items():
            if each.state == "pending":  # a former holder may have this key as well
                # a later revocation does not postpone the end of the active key
                since_ns = min(since_ns, each.since_ns)
                self._state.remove("authentication", name)
        self._make_key(scope, "pending", holders, since_ns)
        self.tell(scope, now_ns)
        self._note_told(scope, "pending")

    def tick(self, now_ns: int) -> list[StreamKey]:
        """Activate keys whose pending time is over, and drop replaced keys whose grace period is over; returns the keys
        that became active."""
        self._adjust_times(now_ns)
        changing = {name: each for name, each in self._state.authentication_keys.items() if each.state != "active"}
        changed: set[str] = set()
        activated = []
        for name, each in changing.items():
            scope = each.key.feed
            if not self._is_due(each, now_ns):
                continue
            if each.state == "old":
                self._state.remove("authentication", name)
            else:
                for other, before in self._keys(scope).items():
                    if before.state == "active":
                        self._put(other, msgspec.structs.replace(before, state="old", since_ns=now_ns))
                self._put(name, msgspec.structs.replace(each, state="active", since_ns=now_ns))
                activated.append(each.key)
            changed.add(scope)
        for scope in sorted(changed):
            self.tell(scope, now_ns)
            self._note_told(scope, "old")
        return activated

    def end(self, scope: str, now_ns: int) -> None:
        """Drop the keys of the stream of a publisher that ended, here and at their holders."""
        keys = self._keys(scope)
        self._take_back(scope, dict.fromkeys(client for each in keys.values() for client in each.holders), now_ns)
        for name in keys:
            self._state.remove("authentication", name)

    def _take_back(self, scope: str, clients: Iterable[str], now_ns: int) -> None:
        """Tell clients to drop the keys of the scope: they lost their right, or the scope ended. A client that still
        asks for events, such as a filter module without its role, would otherwise accept packets of the scope until
        the rotation ends."""
        for client in clients:
            if client in self._rights.policy.clients:
                number = self._state.meta.event_number + 1
                nothing = Authentication(
                    scope=scope, keys=[], active_key_id=0, publishers=[], issuer=self._issuer, number=number
                )
                self._state.notify(client, AuthenticationChanged(authentication=nothing), now_ns)

    def _adjust_times(self, now_ns: int) -> None:
        """After the clock was set back, the waiting times begin anew."""
        for name, each in list(self._state.authentication_keys.items()):
            if each.since_ns > now_ns:
                self._put(name, msgspec.structs.replace(each, since_ns=now_ns))

    def unaware(self, scope: str, number: int, now_ns: int) -> list[str]:
        """Holders of the scope's keys that are present and have not applied event `number`."""
        held = self._keys(scope).values()
        return self._readers.behind({client for each in held for client in each.holders}, number, now_ns)

    def _is_due(self, record: AuthenticationKeyRecord, now_ns: int) -> bool:
        """True if a pending key becomes active now, or a replaced key is dropped."""
        age_ns = now_ns - record.since_ns
        if age_ns >= self._limits.key_rotation_s * NS_PER_SECOND:
            return True
        if age_ns < self._limits.key_grace_s * NS_PER_SECOND:
            return False
        scope = record.key.feed
        newest = max(self._keys(scope).values(), key=lambda each: each.key.key_id)
        publishing = self._publishing(scope, now_ns)
        return not self._readers.behind(newest.holders, record.told, now_ns, publishing=publishing)

    def _publishing(self, scope: str, now_ns: int) -> set[str]:
        """Clients that count as publishing in the scope even if they currently do not poll for events. A client's
        publisher that does not poll counts as ended, except for some time after a start of this server.
        """
        if scope != PUBLISHERS and not is_publisher_scope(scope):
            return {each.client for each in self._feeds.adapters(scope)}
        if not self._readers.is_settling(now_ns):
            return set()
        if scope == PUBLISHERS:
            return {each.client for each in self._state.publishers.values()}
        publisher = self._publisher_streams.publisher(scope)
        return set() if publisher is None else {publisher.client}

    def _note_told(self, scope: str, state: KeyState) -> None:
        """Record that the events so far have announced this state of the scope to all holders of its keys."""
        for name, each in self._keys(scope).items():
            if each.state == state:
                self._put(name, msgspec.structs.replace(each, told=self._state.meta.event_number))

    def _filters(self) -> tuple[str, ...]:
        """Filter modules that have requested keys: they get the keys of every scope."""
        asked = {client for each in self._state.authentication_keys.values() for client in each.holders}
        return tuple(each for each in self._rights.policy.filters() if each in asked)

    def _told(self, scope: str, number: int) -> Authentication:
        keys = sorted(self._keys(scope).values(), key=lambda each: each.key.key_id)
        active = next((each.key.key_id for each in keys if each.state == "active"), 0)
        return Authentication(
            scope=scope,
            keys=[each.key for each in keys],
            active_key_id=active,
            publishers=self._publishers(scope),
            issuer=self._issuer,
            number=number,
        )

    def _publishers(self, scope: str) -> list[Vouched]:
        if is_publisher_scope(scope):
            publisher = self._publisher_streams.publisher(scope)
            stream = None if publisher is None else publisher.stream
            return [] if stream is None else [_vouched(stream.publisher_id, EPOCH, EPOCH)]
        if scope != PUBLISHERS:
            found = (each.registration for each in self._feeds.adapters(scope, live=False))
            return [_vouched(each.publisher_id, each.epoch, each.epoch) for each in found]
        taken = {each.registration.publisher_id for each in self._state.adapters.values()}
        held = (each for each in self._state.publishers.values() if each.publisher_id not in taken)
        # the epoch before the last claim may still be in use: a claim comes before the start, which may fail
        return [_vouched(each.publisher_id, max(1, (each.claimed or each.epoch) - 1), each.epoch) for each in held]

    def _keys(self, scope: str) -> dict[str, AuthenticationKeyRecord]:
        return {name: each for name, each in self._state.authentication_keys.items() if each.key.feed == scope}

    def _make_key(self, scope: str, state: KeyState, holders: tuple[str, ...], now_ns: int) -> None:
        key_id = self._state.meta.authentication_key_number + 1
        self._state.set_meta(authentication_key_number=key_id)
        key = StreamKey(scope, key_id, self._random(KEY_SIZE))
        self._put(str(key_id), AuthenticationKeyRecord(key, state, now_ns, holders))

    def _put(self, name: str, record: AuthenticationKeyRecord) -> None:
        self._state.put("authentication", name, record)


def _vouched(publisher_id: int, first: int, last: int) -> Vouched:
    return Vouched(publisher_id=publisher_id, epoch_first=first, epoch_last=min(last + EPOCHS_AHEAD, EPOCH_MAX))
