"""The documents that operators and a standby server exchange with the administration server; the others are in
brokering.py."""

from typing import Annotated, Literal

import msgspec

from penstock.security.core.brokering import AdapterRole, Answer, Document, Name, Topics
from penstock.security.core.token import Grant


class RevokeRequest(Document, frozen=True, kw_only=True):
    """Revoke topics of a client until an operator restores them. Without topics: all of them."""

    client: Name
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
    topics: Topics = msgspec.field(default_factory=lambda: [">"])


class RevokeAnswer(Answer, frozen=True, kw_only=True):
    subscriptions: list[str]
    """Subscriptions that this revocation ended."""


class RestoreRequest(Document, frozen=True, kw_only=True):
    client: Name


class PolicyRequest(Document, frozen=True, kw_only=True):
    """A new policy document. Without text the server reads its policy file again."""

    text: str | None = None


class PolicyAnswer(Answer, frozen=True, kw_only=True):
    clients: int
    revoked: list[str]
    """Subscriptions that ended because the new policy does not allow their topics."""


class PromoteRequest(Document, frozen=True, kw_only=True):
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class AdapterStatus(Answer, frozen=True, kw_only=True):
    feed: str
    adapter: str
    role: AdapterRole
    term: int
    is_live: bool
    sealed: bool


class ServerStatus(Answer, frozen=True, kw_only=True):
    node: str
    role: Literal["primary", "standby"]
    generation: int
    generation_since_ns: int
    change_number: int
    token_key_id: str
    adapters: list[AdapterStatus]
    subscriptions: int
    denials: int
    policy_sha256: str


class AuditEntry(Answer, frozen=True, kw_only=True):
    number: int
    time_ns: int
    client: str
    address: str
    action: str
    outcome: Literal["done", "refused"]
    code: str
    detail: str


class AuditEntries(Answer, frozen=True, kw_only=True):
    entries: list[AuditEntry]
    next_after: int


class Taken(Answer, frozen=True, kw_only=True):
    """The topics that an administrator revoked from a client."""

    topics: list[str]
    reason: str


class ClientRights(Answer, frozen=True, kw_only=True):
    client: str
    roles: list[str]
    grants: list[Grant]
    """The policy's grants, with revoked topics as denials."""
    taken: list[Taken]
    expires_ns: int | None = None


class BrokeredSubscription(Answer, frozen=True, kw_only=True):
    subscription_id: str
    client: str
    topics: list[str]
    send: list[str]
    expires_ns: int


class Entitlements(Answer, frozen=True, kw_only=True):
    """The caller's own rights. Administrators and auditors also get the rights of other clients and all
    subscriptions, at most a thousand of each."""

    own: ClientRights
    clients: list[ClientRights] | None = None
    subscriptions: list[BrokeredSubscription] | None = None
    client_count: int = 0
    subscription_count: int = 0


# Between the two servers


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A record of the server's state was set; without a value, it was removed."""

    number: int
    kind: str
    key: str
    value: bytes | None


class Changes(Answer, frozen=True, kw_only=True):
    generation: int
    role: Literal["primary", "standby"]
    history_id: str
    """Id of the chain of changes. A promotion begins a new chain."""
    token_key_id: str
    is_whole: bool
    """True if these are all records, False if they are the changes since `after`."""
    changes: list[Change]
    next_after: int
    is_end: bool
