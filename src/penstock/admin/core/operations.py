"""The HTTP API as a table: the server's routes and its OpenAPI document are both made from it."""

from typing import Annotated, Any

import msgspec

from penstock.security.core import brokering as b
from penstock.security.core import operating as o
from penstock.security.core.policy import Role

WAIT_S_MAX = 30.0

ADMINISTRATOR: frozenset[Role] = frozenset({"administrator"})
AUDITOR: frozenset[Role] = frozenset({"administrator", "auditor"})
OPERATOR: frozenset[Role] = frozenset({"administrator", "auditor", "standby"})
PUBLISHER: frozenset[Role] = frozenset({"adapter", "publisher"})
ADAPTER: frozenset[Role] = frozenset({"adapter"})
FILTER: frozenset[Role] = frozenset({"filter"})
STANDBY: frozenset[Role] = frozenset({"standby"})
ANY_CLIENT: frozenset[Role] = frozenset()

Wait = Annotated[float, msgspec.Meta(ge=0, le=WAIT_S_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class NoQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class EventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: Number = 0
    wait_s: Wait = 0.0


class ModelQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None


class AuditQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: Number = 0


class ChangesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    after: Number = 0
    history_id: Annotated[str, msgspec.Meta(max_length=64)] = ""
    wait_s: Wait = 0.0


class Operation(msgspec.Struct, frozen=True):
    name: str
    method: str
    path: str
    summary: str
    answer: Any
    request: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] = NoQuery
    roles: frozenset[Role] | None = ANY_CLIENT
    """Who may ask: clients with one of these roles, any client if none is named, everybody with None."""
    on_standby: bool = False
    """Whether a server that only stands by answers, too."""


SUBSCRIPTION = "/v1/subscriptions/{subscription_id}"

OPERATIONS = (
    Operation("challenge", "POST", "/v1/challenge", "Ask for a challenge to answer.", b.Challenge, b.ChallengeRequest,
              roles=None, on_standby=True),
    Operation("login", "POST", "/v1/login", "Answer a challenge and get a session.", b.Session, b.LoginRequest,
              roles=None, on_standby=True),
    Operation("subscribe", "POST", "/v1/subscriptions", "Subscribe.", b.Brokered, b.SubscribeRequest),
    Operation("renew", "GET", SUBSCRIPTION, "The subscription as it is now, with a fresh token.", b.Brokered),
    Operation("modify", "PUT", SUBSCRIPTION, "Change the topics of a subscription.", b.Brokered, b.ModifyRequest),
    Operation("cancel", "DELETE", SUBSCRIPTION, "End a subscription.", None),
    Operation("events", "GET", "/v1/events", "What happened; waits for the first.", b.Events, query=EventsQuery),
    Operation("entitlements", "GET", "/v1/entitlements", "Who may what: oneself, and for auditors everybody.",
              o.Entitlements),
    Operation("models", "GET", "/v1/models", "Which message models there are.", b.ModelList),
    Operation("model", "GET", "/v1/models/{model_id}", "A message model.", b.ModelDocument, query=ModelQuery),
    Operation("publisher", "POST", "/v1/publishers", "Get a publisher's id and the epoch of its next start.",
              b.PublisherClaimed, b.PublisherRequest, roles=PUBLISHER),
    Operation("register", "POST", "/v1/adapters", "Say that an adapter is there.", b.Registered,
              b.AdapterRegistration, roles=ADAPTER),
    Operation("heartbeat", "POST", "/v1/adapters/heartbeat", "Say that an adapter is still there.", b.HeartbeatAnswer,
              b.AdapterHeartbeat, roles=ADAPTER),
    Operation("verification", "GET", "/v1/verification", "What stream tokens are checked with.", b.Verification,
              roles=FILTER),
    Operation("authentication", "GET", "/v1/authentication", "Keys and epochs that packets are checked with.",
              b.AuthenticationAnswer),
    Operation("revoke", "POST", "/v1/revocations", "Take topics away from a client.", o.RevokeAnswer, o.RevokeRequest,
              roles=ADMINISTRATOR),
    Operation("restore", "POST", "/v1/restorations", "Take back all revocations of a client.", None, o.RestoreRequest,
              roles=ADMINISTRATOR),
    Operation("policy", "PUT", "/v1/policy", "Exchange the policy, or read its file again.", o.PolicyAnswer,
              o.PolicyRequest, roles=ADMINISTRATOR),
    Operation("status", "GET", "/v1/status", "How the server is.", o.ServerStatus, roles=OPERATOR, on_standby=True),
    Operation("audit", "GET", "/v1/audit", "The audit log.", o.AuditEntries, query=AuditQuery, roles=AUDITOR,
              on_standby=True),
    Operation("promote", "POST", "/v1/promote", "Make this server the primary.", o.ServerStatus, o.PromoteRequest,
              roles=ADMINISTRATOR, on_standby=True),
    Operation("changes", "GET", "/v1/changes", "What changed, for the other server of the pair.", o.Changes,
              query=ChangesQuery, roles=STANDBY, on_standby=True),
)  # fmt: skip
