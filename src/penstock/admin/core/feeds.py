"""The feeds as registered by their adapters: the active adapter, the addresses of a subscription's streams, and the
keys of sealed feeds.
"""

from collections.abc import Callable, Iterable

import msgspec

from penstock.admin.config import AdminLimits
from penstock.admin.core.readers import EventReaders
from penstock.admin.core.records import Adapter, FeedKey, KeyState, Subscription
from penstock.admin.core.state import State
from penstock.base.clock import NS_PER_SECOND
from penstock.security.core.brokering import (
    AdapterHeartbeat,
    AdapterRegistration,
    AdapterRole,
    Authentication,
    BrokeredStream,
    KeysChanged,
    ModelReference,
    SourceStreamName,
    StreamAddress,
)
from penstock.security.core.patterns import intersection, parse_pattern
from penstock.security.core.policy import granted, is_covered
from penstock.security.core.sealing import KEY_SIZE, StreamKey
from penstock.security.core.token import Grant
from penstock.wire.term import Term

SILENCES_WITH_ANOTHER = 6
"""Number of `adapter_lost_s` after which the authentication keys of a silent adapter are replaced if another adapter of
its feed is live."""


class Feeds:
    """Changes are made in `state`; `grants_of` returns the current grants of a client, without the revoked ones."""

    def __init__(
        self,
        state: State,
        limits: AdminLimits,
        random: Callable[[int], bytes],
        grants_of: Callable[[str, int], list[Grant]],
        now_ns: int,
        readers: EventReaders | None = None,
    ) -> None:
        self._state = state
        self._limits = limits
        self._random = random
        self._grants_of = grants_of
        self.readers = readers or EventReaders(limits.adapter_lost_s, now_ns)
        self.authenticate: Callable[[str, str, int], Authentication | None] = lambda client, feed, now_ns: None
        """Gives a client the authentication keys of a feed (StreamAuthentication.hand_out)."""
        self._heard_ns = dict.fromkeys(state.adapters, now_ns)  # after a restart, adapters have time to report
        self._live = set(state.adapters)
        self._silent: set[str] = set()  # silent adapters that caused a replacement of keys

    # Adapters

    def register(self, client: str, registration: AdapterRegistration, now_ns: int) -> bool:
        """Record a registration. Return True if subscribers see a change."""
        name = adapter_name(registration)
        before = self._state.adapters.get(name)
        term = max(registration.term, before.term if before is not None else 0)
        key_ids = before.key_ids if before is not None else ()
        adapter = Adapter(client, registration, term, key_ids)
        was_active = self.active(registration.feed)
        if adapter != before:
            self._state.put("adapter", name, adapter)
        is_new = name not in self._live or before is None or before.registration != registration
        self._heard_ns[name] = now_ns
        self._live.add(name)
        if registration.sealed and self.active_key(registration.feed) is None:
            # nothing was sealed with this key yet: clients that have subscribed already may hold it
            self._make_key(registration.feed, "active", tuple(self._subscribers(registration.feed, now_ns)), now_ns)
        return is_new or self.active(registration.feed) != was_active

    def heartbeat(self, heartbeat: AdapterHeartbeat, now_ns: int) -> bool:
        """Record a heartbeat. Return True if subscribers see a change: another active adapter, or the return of this
        one.
        """
        name = f"{heartbeat.feed}/{heartbeat.adapter}"
        adapter = self._state.adapters[name]
        was_active = self.active(heartbeat.feed)
        term, key_ids = max(adapter.term, heartbeat.term), tuple(sorted(set(heartbeat.key_ids)))
        if (term, key_ids) != (adapter.term, adapter.key_ids):
            self._state.put("adapter", name, msgspec.structs.replace(adapter, term=term, key_ids=key_ids))
        is_back = name not in self._live
        self._heard_ns[name] = now_ns
        self._live.add(name)
        return is_back or self.active(heartbeat.feed) != was_active

    def forget_lost(self, now_ns: int) -> set[str]:
        """The feeds of adapters that were silent for too long."""
        lost_ns = int(self._limits.adapter_lost_s * NS_PER_SECOND)
        # a clock that was set back does not keep silent adapters alive
        self._heard_ns = {name: min(heard_ns, now_ns) for name, heard_ns in self._heard_ns.items()}
        lost = {name for name in self._live if now_ns - self._heard_ns[name] > lost_ns}
        self._live -= lost
        return {self._state.adapters[name].registration.feed for name in lost}

    def newly_silent(self, now_ns: int) -> set[str]:
        """The feeds of multicast adapters whose recorded packets could pass for live ones by now, each adapter once per
        silence: after SILENCES_WITH_ANOTHER times `adapter_lost_s` if another adapter of the feed is live, else after
        `key_lease_s`."""
        found = set()
        for name, adapter in self._state.adapters.items():
            feed = adapter.registration.feed
            if name in self._live:
                self._silent.discard(name)
                continue
            limit_s = SILENCES_WITH_ANOTHER * self._limits.adapter_lost_s if self.adapters(feed) else None
            limit_s = self._limits.key_lease_s if limit_s is None else min(limit_s, self._limits.key_lease_s)
            is_over = now_ns - self._heard_ns.get(name, now_ns) > limit_s * NS_PER_SECOND
            if is_over and name not in self._silent and adapter.registration.transport == "multicast":
                self._silent.add(name)
                found.add(feed)
        return found

    def remove(self, name: str) -> None:
        """Remove an adapter that may have lost the right to be one."""
        self._state.remove("adapter", name)
        self._heard_ns.pop(name, None)
        self._live.discard(name)
        self._silent.discard(name)

    def is_live(self, adapter: Adapter) -> bool:
        return adapter_name(adapter.registration) in self._live

    def adapters(self, feed: str, *, live: bool = True) -> list[Adapter]:
        found = [each for each in self._state.adapters.values() if each.registration.feed == feed]
        return sorted((each for each in found if not live or self.is_live(each)), key=lambda a: a.registration.index)

    def names(self) -> list[str]:
        return sorted({each.registration.feed for each in self._state.adapters.values()})

    def clients(self, feed: str) -> list[str]:
        """The policy's names of the feed's adapters, live or not."""
        return sorted({each.client for each in self.adapters(feed, live=False)})

    def active(self, feed: str) -> int | None:
        """The index of the active adapter, as named by the highest term reported by the feed's adapters."""
        term = max((each.term for each in self.adapters(feed, live=False)), default=0)
        return Term.of(term).claimant if term else None

    def role(self, adapter: Adapter) -> AdapterRole:
        return "active" if self.active(adapter.registration.feed) == adapter.registration.index else "backup"

    def concerned(self, grants: Iterable[Grant]) -> list[str]:
        """Feeds with which these grants have a topic in common."""
        grants = list(grants)
        return [
            feed
            for feed in self.names()
            if common_patterns(grants, self._topics(feed), "receive")
            or common_patterns(grants, self._contributions(feed), "send")
        ]

    # Addresses of streams

    def streams(self, subscription: Subscription, now_ns: int) -> list[BrokeredStream]:
        """The streams of the feeds for a subscription: one for each feed and delay."""
        found: list[BrokeredStream] = []
        delays_s = sorted({each.delay_s for each in subscription.grants if each.action == "receive"} | {0})
        for feed in self.names():
            adapters = self.adapters(feed)
            if not adapters:
                continue
            send = common_patterns(subscription.grants, self._contributions(feed), "send")
            for delay_s in delays_s:
                grants = [each for each in subscription.grants if each.delay_s == delay_s]
                topics = common_patterns(grants, self._topics(feed), "receive")
                contributes = send if delay_s == 0 else []
                if topics or contributes:
                    stream = self._stream(subscription.client, feed, adapters, topics, delay_s, now_ns)
                    found.append(msgspec.structs.replace(stream, send=contributes))
        return found

    def _stream(
        self, client: str, feed: str, adapters: list[Adapter], topics: list[str], delay_s: int, now_ns: int
    ) -> BrokeredStream:
        is_sealed = self.is_sealed(feed)
        has_multicast = bool(topics) and delay_s == 0 and (not is_sealed or self.may_hold(client, feed, now_ns))
        if is_sealed and has_multicast and self._waits_for_key(client, feed, now_ns):
            topics, has_multicast = [], False
        is_open = has_multicast and any(each.registration.transport == "multicast" for each in adapters)
        addresses = [_address(each, self.role(each), has_multicast) for each in adapters]
        return BrokeredStream(
            feed=feed,
            source_streams=_unique(each.registration.source_streams for each in adapters),
            topics=topics,
            delay_s=delay_s,
            sealed=is_sealed,
            keys=self.hand_out(client, feed) if is_sealed and has_multicast else [],
            models=_unique(each.registration.models for each in adapters),
            addresses=sorted(addresses, key=lambda address: address.role != "active"),
            authentication=self.authenticate(client, feed, now_ns) if is_open else None,
        )

    def has_multicast(self, client: str, feed: str, now_ns: int) -> bool:
        """True if the client may join the feed's groups: it needs live rights to some of the topics, or to all topics
        of a sealed feed."""
        if self.is_sealed(feed):
            return self.may_hold(client, feed, now_ns)
        live = [each for each in self._grants_of(client, now_ns) if each.delay_s == 0]
        return bool(granted(live, self._topics(feed), "receive"))

    def _topics(self, feed: str) -> list[str]:
        return list(
            dict.fromkeys(text for each in self.adapters(feed, live=False) for text in each.registration.topics)
        )

    def published(self, feed: str) -> list[str]:
        """All topics that the feed's adapters may send."""
        return [*self._topics(feed), *self._contributions(feed)]

    def _contributions(self, feed: str) -> list[str]:
        patterns = (text for each in self.adapters(feed, live=False) for text in each.registration.contributions)
        return list(dict.fromkeys(patterns))

    # Keys of sealed feeds

    def is_sealed(self, feed: str) -> bool:
        return any(each.registration.sealed for each in self.adapters(feed, live=False))

    def may_hold(self, client: str, feed: str, now_ns: int) -> bool:
        """True if the client has the live right to the whole feed, which the key opens."""
        topics = self._topics(feed)
        return bool(topics) and is_covered(self._grants_of(client, now_ns), topics, "receive")

    def keys(self, feed: str) -> list[FeedKey]:
        found = [each for each in self._state.keys.values() if each.key.feed == feed]
        return sorted(found, key=lambda each: each.key.key_id)

    def active_key(self, feed: str) -> StreamKey | None:
        active = self._key_in(feed, "active")
        return None if active is None else active.key

    def _key_in(self, feed: str, state: KeyState) -> FeedKey | None:
        return next((each for each in self.keys(feed) if each.state == state), None)

    def _subscribers(self, feed: str, now_ns: int, among: Iterable[str] | None = None) -> list[str]:
        """Return the clients with a subscription to the feed and the right to its keys; of `among` only, if given."""
        topics, wanted = self._topics(feed), None if among is None else set(among)
        found = {
            each.client
            for each in self._state.subscriptions.values()
            if (wanted is None or each.client in wanted) and common_patterns(each.grants, topics, "receive")
        }
        return sorted(client for client in found if self.may_hold(client, feed, now_ns))

    def _waits_for_key(self, client: str, feed: str, now_ns: int) -> bool:
        """True if a client with the right to the keys must wait, because the active key opens packets that were sealed
        before its subscription. The client becomes a holder of the next key.
        """
        active = self._key_in(feed, "active")
        if active is None:
            return False
        if client in active.holders:
            return client in active.newcomers
        pending = self._key_in(feed, "pending")
        if pending is None:
            self.rotate(feed, [*self._subscribers(feed, now_ns, active.holders), client], now_ns)
            pending = self._next_key(feed)
        if client not in pending.newcomers:
            holders = tuple(sorted({*pending.holders, client}))
            newcomers = (*pending.newcomers, client)
            self._put_key(msgspec.structs.replace(pending, holders=holders, newcomers=newcomers))
        return True

    @property
    def is_replacing_keys(self) -> bool:
        """True if a key waits for confirmations of adapters or holders."""
        return any(each.state == "pending" or each.newcomers for each in self._state.keys.values())

    def admit_newcomers(self, now_ns: int) -> list[tuple[str, tuple[str, ...]]]:
        """Return the feeds whose adapters seal with a new key, and the clients whose subscriptions begin with that key.
        Adapters have until `key_rotation_s` after the key's creation to confirm it.
        """
        grace_ns, rotation_ns = self._times_ns
        admitted = []
        for key in [each for each in self._state.keys.values() if each.state == "active" and each.newcomers]:
            feed = key.key.feed
            sealing = {each.client for each in self.adapters(feed)}
            is_over = now_ns - key.created_ns >= rotation_ns and now_ns - key.active_ns >= grace_ns
            if is_over or not self.readers.behind(sealing, key.told, now_ns, publishing=sealing):
                self._put_key(msgspec.structs.replace(key, newcomers=()))
                for other in self.keys(feed):
                    if other.state == "pending":  # admitted clients do not wait again when this key becomes active
                        newcomers = tuple(each for each in other.newcomers if each not in key.newcomers)
                        self._put_key(msgspec.structs.replace(other, newcomers=newcomers))
                admitted.append((feed, key.newcomers))
        return admitted

    def hand_out(self, client: str, feed: str) -> list[StreamKey]:
        """The feed's keys, for a client that may hold them or is its adapter; the holders are recorded. A retired key
        is given only to clients that already held it, because others may have had no right at that time."""
        keys = [each for each in self.keys(feed) if each.state != "old" or client in each.holders]
        for each in keys:
            if client not in each.holders:
                self._put_key(msgspec.structs.replace(each, holders=(*each.holders, client)))
        return [each.key for each in keys]

    def rotate_lost(self, now_ns: int) -> list[str]:
        """New keys for feeds of which a holder lost the right; returns the feeds."""
        rotated = []
        for feed in sorted({each.key.feed for each in self._state.keys.values()}):  # also those without adapters
            adapters = self.clients(feed)
            holders = self._next_key(feed).holders
            entitled = [each for each in holders if each in adapters or self.may_hold(each, feed, now_ns)]
            if len(entitled) < len(holders):
                self.rotate(feed, entitled, now_ns)
                rotated.append(feed)
        return rotated

    def rotate_aged(self, now_ns: int) -> list[str]:
        """Create new keys for feeds whose key is older than `key_lifetime_s`; returns the feeds. Holders
        without a subscription get no new key."""
        lifetime_ns = self._limits.key_lifetime_s * NS_PER_SECOND
        rotated = []
        for feed in self.names():
            if not self.keys(feed) or not self.is_sealed(feed):
                continue
            newest = self._next_key(feed)
            if newest.state == "active" and now_ns - newest.created_ns >= lifetime_ns:
                self.rotate(feed, self._subscribers(feed, now_ns, newest.holders), now_ns)
                rotated.append(feed)
        return rotated

    def _next_key(self, feed: str) -> FeedKey:
        """The key that is used from now on, or as soon as the adapters have it."""
        return next(each for each in reversed(self.keys(feed)) if each.state != "old")

    def rotate(self, feed: str, holders: list[str], now_ns: int) -> None:
        """Create a new key for the adapters and these holders; the key becomes active when the adapters have it. A key
        that replaces a pending key inherits its due time, so that revocations in quick succession do not postpone the
        retirement of the active key."""
        since_ns = now_ns
        waiting = {client for each in self.keys(feed) if each.state != "old" for client in each.newcomers}
        for each in self.keys(feed):
            if each.state == "pending":  # a client that lost the right may have this key as well
                since_ns = min(since_ns, each.created_ns)
                self._put_key(msgspec.structs.replace(each, state="old"))
        given = sorted({*self.clients(feed), *holders})
        made = self._make_key(feed, "pending", tuple(given), since_ns)
        self._put_key(msgspec.structs.replace(made, newcomers=tuple(sorted(waiting.intersection(given)))))
        active = self.active_key(feed)
        event = KeysChanged(feed=feed, keys=[made.key], active_key_id=active.key_id if active else 0)
        for client in given:
            self._state.notify(client, event, now_ns)
        self._note_told(made.key.key_id)

    def adjust_times(self, now_ns: int) -> None:
        """After the clock was set back, the waiting times and lifetimes of keys begin anew."""
        for each in list(self._state.keys.values()):
            if max(each.created_ns, each.active_ns) > now_ns:
                created_ns, active_ns = min(each.created_ns, now_ns), min(each.active_ns, now_ns)
                self._put_key(msgspec.structs.replace(each, created_ns=created_ns, active_ns=active_ns))

    def activate_due(self, now_ns: int) -> list[StreamKey]:
        """Activate the pending keys that are due, so that the adapters seal with them; returns these keys."""
        due = [each for each in self._state.keys.values() if each.state == "pending" and self._is_due(each, now_ns)]
        for each in due:
            feed = each.key.feed
            for other in self.keys(feed):
                if other.state == "active":
                    self._put_key(msgspec.structs.replace(other, state="old"))
            self._put_key(msgspec.structs.replace(each, state="active", active_ns=now_ns))
            for stale in self.keys(feed)[: -self._limits.keys_kept]:
                self._state.remove("key", str(stale.key.key_id))
            for client in self.clients(feed):
                self._state.notify(client, KeysChanged(feed=feed, keys=[], active_key_id=each.key.key_id), now_ns)
            self._note_told(each.key.key_id)
        return [each.key for each in due]

    def _is_due(self, key: FeedKey, now_ns: int) -> bool:
        """True if adapters use the key from now on. After the key's creation, holders have `key_grace_s` and adapters
        have `key_rotation_s` to confirm it. Replacements are at least `key_grace_s` apart, so that many new subscribers
        share one.
        """
        grace_ns, rotation_ns = self._times_ns
        age_ns, feed = now_ns - key.created_ns, key.key.feed
        if age_ns >= rotation_ns:
            return True
        if not all(key.key.key_id in each.key_ids for each in self.adapters(feed)):
            return False
        active = self._key_in(feed, "active")
        if active is not None and now_ns - active.active_ns < grace_ns:
            return False
        return age_ns >= grace_ns or self._is_confirmed(key, now_ns)

    def _is_confirmed(self, key: FeedKey, now_ns: int) -> bool:
        """True if all present holders have the key; after a start of this server, holders must first poll again."""
        if not self.adapters(key.key.feed):
            return False  # no adapter seals, and no holder can have confirmed the key
        holders = {*key.holders}.difference(self.clients(key.key.feed), key.newcomers)
        if not holders:
            return True
        return not self.readers.is_settling(now_ns) and not self.readers.behind(holders, key.told, now_ns)

    @property
    def _times_ns(self) -> tuple[float, float]:
        """`key_grace_s` and `key_rotation_s`."""
        return self._limits.key_grace_s * NS_PER_SECOND, self._limits.key_rotation_s * NS_PER_SECOND

    def _note_told(self, key_id: int) -> None:
        """Record that the events so far have announced the key's state."""
        key = self._state.keys[str(key_id)]
        self._put_key(msgspec.structs.replace(key, told=self._state.meta.event_number))

    def _make_key(self, feed: str, state: KeyState, holders: tuple[str, ...], now_ns: int) -> FeedKey:
        key_id = self._state.meta.key_number + 1
        self._state.set_meta(key_number=key_id)
        made = FeedKey(StreamKey(feed, key_id, self._random(KEY_SIZE)), state, now_ns, holders)
        self._put_key(made)
        return made

    def _put_key(self, key: FeedKey) -> None:
        self._state.put("key", str(key.key.key_id), key)


def topics_of(registration: AdapterRegistration) -> list[str]:
    """The topics that an adapter sends: its own and its contributions."""
    return [*registration.topics, *registration.contributions]


def adapter_name(registration: AdapterRegistration) -> str:
    return f"{registration.feed}/{registration.adapter}"


def _address(adapter: Adapter, role: AdapterRole, has_multicast: bool) -> StreamAddress:
    told = adapter.registration
    is_multicast = has_multicast and told.transport == "multicast"
    return StreamAddress(
        adapter=told.adapter,
        role=role,
        publisher_id=told.publisher_id,
        transport="multicast" if is_multicast else "unicast",
        group=told.group if is_multicast else "",
        port=told.port if is_multicast else 0,
        interface=told.interface if is_multicast else "",
        service_host=told.service_host,
        service_port=told.service_port,
    )


def common_patterns(grants: Iterable[Grant], topics: list[str], action: str) -> list[str]:
    """Patterns of the topics that the grants and the topics have in common, and the denials that apply to them."""
    mine = [(parse_pattern(each.pattern), each) for each in grants if each.action == action]
    theirs = [parse_pattern(text) for text in topics]
    found = [intersection(ours, topic) for ours, _ in mine if not ours.negative for topic in theirs]
    patterns = [each for each in dict.fromkeys(found) if each is not None]
    denials = [f"!{ours.subject}" for ours, _ in mine if ours.negative]
    return [*patterns, *denials] if patterns else []


def _unique(lists: Iterable[list[ModelReference]] | Iterable[list[SourceStreamName]]) -> list:  # type: ignore[type-arg]
    return list(dict.fromkeys(each for one in lists for each in one))
