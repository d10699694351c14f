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
    """Roles that may call the operation: clients with one of these roles; any client if empty; everybody, without a
    login, if None."""
    on_standby: bool = False
    """True if a standby answers as well."""


SUBSCRIPTION = "/v1/subscriptions/{subscription_id}"

OPERATIONS = (
    Operation("challenge", "POST", "/v1/challenge", "Get a challenge for a login.", b.Challenge, b.ChallengeRequest,
              roles=None, on_standby=True),
    Operation("login", "POST", "/v1/login", "Answer a challenge and get a session.", b.Session, b.LoginRequest,
              roles=None, on_standby=True),
    Operation("subscribe", "POST", "/v1/subscriptions", "Subscribe.", b.Brokered, b.SubscribeRequest),
    Operation("renew", "GET", SUBSCRIPTION, "Renew a subscription: its current state, with a new token.", b.Brokered),
    Operation("modify", "PUT", SUBSCRIPTION, "Change the topics of a subscription.", b.Brokered, b.ModifyRequest),
    Operation("cancel", "DELETE", SUBSCRIPTION, "End a subscription.", None),
    Operation("events", "GET", "/v1/events", "Events for the client; waits for the first one.", b.Events,
              query=EventsQuery),
    Operation("entitlements", "GET", "/v1/entitlements", "Entitlements: the client's own; for auditors, of all.",
              o.Entitlements),
    Operation("models", "GET", "/v1/models", "The list of message models.", b.ModelList),
    Operation("model", "GET", "/v1/models/{model_id}", "A message model.", b.ModelDocument, query=ModelQuery),
    Operation("publisher", "POST", "/v1/publishers", "Get a publisher's id and the epoch of its next start.",
              b.PublisherClaimed, b.PublisherRequest, roles=PUBLISHER),
    Operation("register", "POST", "/v1/adapters", "Register an adapter.", b.Registered,
              b.AdapterRegistration, roles=ADAPTER),
    Operation("heartbeat", "POST", "/v1/adapters/heartbeat", "Report that an adapter is alive.", b.HeartbeatAnswer,
              b.AdapterHeartbeat, roles=ADAPTER),
    Operation("verification", "GET", "/v1/verification", "The keys and revocations for checking stream tokens.",
              b.Verification, roles=FILTER),
    Operation("authentication", "GET", "/v1/authentication", "The keys and epochs for checking packets.",
              b.AuthenticationAnswer),
    Operation("revoke", "POST", "/v1/revocations", "Take topics away from a client.", o.RevokeAnswer, o.RevokeRequest,
              roles=ADMINISTRATOR),
    Operation("restore", "POST", "/v1/restorations", "Take back all revocations of a client.", None, o.RestoreRequest,
              roles=ADMINISTRATOR),
    Operation("policy", "PUT", "/v1/policy", "Replace the policy, or read its file again.", o.PolicyAnswer,
              o.PolicyRequest, roles=ADMINISTRATOR),
    Operation("status", "GET", "/v1/status", "The state of the server.", o.ServerStatus, roles=OPERATOR,
              on_standby=True),
    Operation("audit", "GET", "/v1/audit", "The audit log.", o.AuditEntries, query=AuditQuery, roles=AUDITOR,
              on_standby=True),
    Operation("promote", "POST", "/v1/promote", "Make this server the primary.", o.ServerStatus, o.PromoteRequest,
              roles=ADMINISTRATOR, on_standby=True),
    Operation("changes", "GET", "/v1/changes", "The changes of the state, for the other server of the pair.", o.Changes,
              query=ChangesQuery, roles=STANDBY, on_standby=True),
)  # fmt: skip
