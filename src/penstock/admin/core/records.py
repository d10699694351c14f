"""The durable records of an administration server: by kind and key, each a plain value."""

from typing import Any, Literal, TypeAlias

import msgspec

from penstock.security.core.brokering import AdapterRegistration, Event, Revoked
from penstock.security.core.sealing import StreamKey
from penstock.security.core.token import Grant

KeyState: TypeAlias = Literal["pending", "active", "old"]


class Meta(msgspec.Struct, frozen=True):
    """The server's generation and its counters."""

    generation: int = 1
    generation_since_ns: int = 0
    event_number: int = 0
    event_floor: int = 0
    """Events up to this number may come from another server: a reader that has not applied them all requests its
    whole state anew."""
    key_number: int = 0
    authentication_key_number: int = 0


class PolicyText(msgspec.Struct, frozen=True):
    """The policy document that was last set."""

    text: str = ""


class Issued(msgspec.Struct, frozen=True):
    """Grants in tokens issued before a subscription was modified, until the last of these tokens expires."""

    grants: tuple[Grant, ...]
    until_ns: int


class PublisherStream(msgspec.Struct, frozen=True):
    """The multicast stream of a client's publisher."""

    publisher_id: int
    group: str
    port: int


class Subscription(msgspec.Struct, frozen=True):
    subscription_id: str
    client: str
    topics: tuple[str, ...]
    send: tuple[str, ...]
    grants: tuple[Grant, ...]
    expires_ns: int
    """Expiry of the last token."""
    issued: tuple[Issued, ...] = ()
    """Grants of earlier tokens that exceed the current grants."""
    stream: PublisherStream | None = None
    """The stream on which the client publishes the topics of `send`."""


class Denial(msgspec.Struct, frozen=True):
    """A revocation by an administrator."""

    topics: tuple[str, ...]
    reason: str
    time_ns: int


class Denials(msgspec.Struct, frozen=True):
    client: str
    denials: tuple[Denial, ...]


class Adapter(msgspec.Struct, frozen=True):
    client: str
    registration: AdapterRegistration
    term: int
    key_ids: tuple[int, ...]


class PublisherName(msgspec.Struct, frozen=True):
    """A publisher of a client, and the highest epoch that may have been issued to it."""

    client: str
    name: str
    publisher_id: int
    epoch: int
    claimed: int = 0
    """The last issued epoch, as far as this server knows."""


class FeedKey(msgspec.Struct, frozen=True):
    key: StreamKey
    state: KeyState
    created_ns: int
    holders: tuple[str, ...]
    """Clients that have received the key."""
    newcomers: tuple[str, ...] = ()
    """Holders without earlier keys; their subscriptions begin when all adapters seal with this key."""
    active_ns: int = 0
    """Time of its activation."""
    told: int = 0
    """Number of the last event that announced the key's state to adapters and holders."""


class AuthenticationKeyRecord(msgspec.Struct, frozen=True):
    key: StreamKey
    state: KeyState
    since_ns: int
    """Time of the last state change. If several pending keys replaced each other: the time at which the first one
    was created."""
    holders: tuple[str, ...]
    """Clients that have received the key."""
    told: int = 0
    """Number of the last event that announced the current state to the holders."""


class Notice(msgspec.Struct, frozen=True):
    """An event for a client."""

    client: str
    event: Event


KINDS: dict[str, type[Any]] = {
    "meta": Meta,
    "policy": PolicyText,
    "subscription": Subscription,
    "revoked": Revoked,
    "denials": Denials,
    "adapter": Adapter,
    "key": FeedKey,
    "publisher": PublisherName,
    "authentication": AuthenticationKeyRecord,
    "notice": Notice,
}

_decoders = {kind: msgspec.msgpack.Decoder(each) for kind, each in KINDS.items()}


def encode(record: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(kind: str, data: bytes) -> Any:
    return _decoders[kind].decode(data)
