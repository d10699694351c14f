"""The server's state in memory, and its changes since the driver last made it durable."""

from collections import deque
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import msgspec

from penstock.admin.core.records import (
    Adapter,
    AuthenticationKeyRecord,
    Denials,
    FeedKey,
    Meta,
    Notice,
    PolicyText,
    PublisherName,
    Subscription,
)
from penstock.security.core.brokering import Event, EventBody, Revoked

SERVER = "server"
"""The key of a record kind with a single record."""
EVENT_STEP = 1 << 32
"""Added to the event numbers by a server that takes over. Larger than the number of events that a server issues
before its standby receives them."""


class Stored(NamedTuple):
    """A record as the driver stores it; without a record, the stored one is removed."""

    kind: str
    key: str
    record: msgspec.Struct | None


class Audit(NamedTuple):
    """One line of the audit log."""

    time_ns: int
    client: str
    address: str
    action: str
    outcome: Literal["done", "refused"]
    code: str
    detail: str


class State:
    """Records by kind and key. put() and remove() are the only ways to change them."""

    def __init__(self, records: Iterable[Stored], *, events_kept: int) -> None:
        self.subscriptions: dict[str, Subscription] = {}
        self.revoked: dict[str, Revoked] = {}
        self.denials: dict[str, Denials] = {}
        self.adapters: dict[str, Adapter] = {}
        self.keys: dict[str, FeedKey] = {}
        self.publishers: dict[str, PublisherName] = {}
        self.authentication_keys: dict[str, AuthenticationKeyRecord] = {}
        self._meta: dict[str, Meta] = {SERVER: Meta()}
        self._policy: dict[str, PolicyText] = {SERVER: PolicyText()}
        self._notices: dict[str, Notice] = {}
        self._tables: dict[str, dict[str, Any]] = {
            "meta": self._meta,
            "policy": self._policy,
            "subscription": self.subscriptions,
            "revoked": self.revoked,
            "denials": self.denials,
            "adapter": self.adapters,
            "key": self.keys,
            "publisher": self.publishers,
            "authentication": self.authentication_keys,
            "notice": self._notices,
        }
        self._events: dict[str, deque[Event]] = {}
        self._dropped: dict[str, int] = {}
        self._events_kept = events_kept
        self._changes: dict[tuple[str, str], Stored] = {}
        for kind, key, record in records:
            self._tables[kind][key] = record
        for key in sorted(self._notices):
            notice = self._notices[key]
            self._queue(notice.client).append(notice.event)
        # the numbers of dropped events are not stored: "not complete" is reported in case of doubt
        self._restored_number = self.meta.event_number
        for client, queue in self._events.items():
            self._dropped[client] = queue[0].number - 1

    @property
    def meta(self) -> Meta:
        return self._meta[SERVER]

    def set_meta(self, **values: Any) -> None:
        self.put("meta", SERVER, msgspec.structs.replace(self.meta, **values))

    @property
    def policy_text(self) -> str:
        return self._policy[SERVER].text

    def set_policy_text(self, text: str) -> None:
        self.put("policy", SERVER, PolicyText(text))

    def put(self, kind: str, key: str, record: msgspec.Struct) -> None:
        self._tables[kind][key] = record
        self._changes[kind, key] = Stored(kind, key, record)

    def remove(self, kind: str, key: str) -> None:
        if self._tables[kind].pop(key, None) is not None:
            self._changes[kind, key] = Stored(kind, key, None)

    def take_changes(self) -> list[Stored]:
        """The changes since the last call, each record once."""
        changes, self._changes = self._changes, {}
        return list(changes.values())

    def notify(self, client: str, body: EventBody, now_ns: int) -> None:
        """Queue an event for a client; with too many events queued, the oldest is dropped."""
        number = self.meta.event_number + 1
        self.set_meta(event_number=number)
        event = Event(number=number, time_ns=now_ns, body=body)
        queue = self._queue(client)
        queue.append(event)
        self.put("notice", _notice_key(client, number), Notice(client, event))
        while len(queue) > self._events_kept:
            self._drop(client)

    def events(self, client: str, after: int) -> tuple[list[Event], bool]:
        """The events after number `after`, and whether the list is complete. It is not complete if events were
        dropped, or if this server has not issued the number `after`."""
        queue = self._events.get(client, ())
        known_from = max(self._dropped.get(client, self._restored_number), self.meta.event_floor)
        return [event for event in queue if event.number > after], known_from <= after <= self.meta.event_number

    def advance_events(self) -> None:
        """Skip an event number, so that later answers with the state are newer than earlier ones."""
        self.set_meta(event_number=self.meta.event_number + 1)

    def begin_events(self) -> None:
        """Continue with event numbers beyond those of any other server, which may have issued events that this
        server did not receive."""
        number = self.meta.event_number + EVENT_STEP
        self.set_meta(event_number=number, event_floor=number)

    def forget_events(self, before_ns: int) -> None:
        for client in list(self._events):
            while self._events[client] and self._events[client][0].time_ns < before_ns:
                self._drop(client)
            if not self._events[client]:
                del self._events[client]

    def _drop(self, client: str) -> None:
        event = self._events[client].popleft()
        self._dropped[client] = event.number
        self.remove("notice", _notice_key(client, event.number))

    def _queue(self, client: str) -> deque[Event]:
        return self._events.setdefault(client, deque())


def _notice_key(client: str, number: int) -> str:
    return f"{number:020}/{client}"
