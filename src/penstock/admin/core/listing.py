"""The lists of entitlements and subscriptions, for callers with the right to read them."""

from itertools import islice

from penstock.admin.core.administration import Caller
from penstock.admin.core.client_grants import ClientGrants
from penstock.admin.core.state import State
from penstock.base.errors import TokenError
from penstock.security.core import operating as o

ROWS_MAX = 1_000
"""Maximal number of clients and subscriptions in a list."""


def entitlements(rights: ClientGrants, state: State, caller: Caller, is_of_all: object, now_ns: int) -> o.Entitlements:
    """A client that was removed from the policy is refused: with an empty list of roles, the client would look like one
    that never had a role, and its session would continue.
    """
    if caller.client not in rights.policy.clients:
        raise TokenError(f"client {caller.client!r} is no longer in the policy", hint="ask the administrator")
    own = _rights(rights, state, caller.client, now_ns)
    if not is_of_all:
        return o.Entitlements(own=own)
    names = rights.policy.clients
    return o.Entitlements(
        own=own,
        clients=[_rights(rights, state, name, now_ns) for name in islice(names, ROWS_MAX)],
        subscriptions=[
            o.BrokeredSubscription(
                subscription_id=each.subscription_id,
                client=each.client,
                topics=list(each.topics),
                send=list(each.send),
                expires_ns=each.expires_ns,
            )
            for each in islice(state.subscriptions.values(), ROWS_MAX)
        ],
        client_count=len(names),
        subscription_count=len(state.subscriptions),
    )


def _rights(rights: ClientGrants, state: State, client: str, now_ns: int) -> o.ClientRights:
    entry = rights.policy.clients.get(client)
    held = state.denials.get(client)
    return o.ClientRights(
        client=client,
        roles=sorted(entry.roles) if entry is not None else [],
        grants=rights.grants(client, now_ns),
        taken=[o.Taken(topics=list(each.topics), reason=each.reason) for each in held.denials] if held else [],
        expires_ns=entry.expires_ns if entry is not None else None,
    )
