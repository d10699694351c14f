"""Entitlements, connected clients and the audit log, as the console shows them."""

import msgspec

from penstock.security.core import operating as o
from penstock.security.core.token import Grant

NS_PER_MS = 1_000_000


class GrantDocument(msgspec.Struct, frozen=True, kw_only=True):
    pattern: str
    action: str
    delay_s: int


class RevokedDocument(msgspec.Struct, frozen=True, kw_only=True):
    topics: list[str]
    reason: str


class ClientDocument(msgspec.Struct, frozen=True, kw_only=True):
    client: str
    roles: list[str]
    grants: list[GrantDocument]
    revoked: list[RevokedDocument]
    expires_ms: float | None


class SubscriptionDocument(msgspec.Struct, frozen=True, kw_only=True):
    subscription_id: str
    client: str
    topics: list[str]
    send: list[str]
    expires_ms: float


class EntitlementsDocument(msgspec.Struct, frozen=True, kw_only=True):
    client: str
    roles: list[str]
    grants: list[GrantDocument]
    revoked: list[RevokedDocument]
    clients: list[ClientDocument] | None
    subscriptions: list[SubscriptionDocument] | None
    counts: dict[str, int]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    time_ms: float
    client: str
    address: str
    action: str
    outcome: str
    code: str
    detail: str


class AuditDocument(msgspec.Struct, frozen=True, kw_only=True):
    entries: list[AuditEntry]
    next_after: int


def entitlements_document(found: o.Entitlements) -> EntitlementsDocument:
    own = _client(found.own)
    clients = None if found.clients is None else [_client(each) for each in found.clients]
    subscriptions = None
    if found.subscriptions is not None:
        subscriptions = [
            SubscriptionDocument(
                subscription_id=each.subscription_id,
                client=each.client,
                topics=each.topics,
                send=each.send,
                expires_ms=each.expires_ns / NS_PER_MS,
            )
            for each in found.subscriptions
        ]
    return EntitlementsDocument(
        client=own.client,
        roles=own.roles,
        grants=own.grants,
        revoked=own.revoked,
        clients=clients,
        subscriptions=subscriptions,
        counts={"clients": found.client_count, "subscriptions": found.subscription_count},
    )


def audit_document(found: o.AuditEntries) -> AuditDocument:
    entries = []
    for each in found.entries:
        fields = msgspec.structs.asdict(each)
        entries.append(AuditEntry(time_ms=fields.pop("time_ns") / NS_PER_MS, **fields))
    return AuditDocument(entries=entries, next_after=found.next_after)


def _client(rights: o.ClientRights) -> ClientDocument:
    return ClientDocument(
        client=rights.client,
        roles=rights.roles,
        grants=[_grant(each) for each in rights.grants],
        revoked=[RevokedDocument(topics=each.topics, reason=each.reason) for each in rights.taken],
        expires_ms=None if rights.expires_ns is None else rights.expires_ns / NS_PER_MS,
    )


def _grant(grant: Grant) -> GrantDocument:
    return GrantDocument(pattern=grant.pattern, action=grant.action, delay_s=grant.delay_s)
