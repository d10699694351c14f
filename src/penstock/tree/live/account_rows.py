"""The accounts of an agent as rows of the models `agent_run`, `agent_intake` and `agent_account`."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.model import shipped
from penstock.runtime.accounts import Account
from penstock.tree.core.accounts import LinkAccount
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.streams import Stream

RUN, INTAKE, ACCOUNT = shipped("agent_run"), shipped("agent_intake"), shipped("agent_account")


REFUSALS = ("consumers_refused", "requests_refused", "connections_refused")


def account_rows(core: DistributionAgent, counted: Sequence[Counters]) -> Iterator[Account]:
    """The current accounts, read in the core's thread; an ended link is included once. `counted` count refusals."""
    yield Account(RUN, "", _run(core, counted))
    for stream in core.streams:
        yield Account(INTAKE, stream.number, _intake(core, stream))
    for account in [*core.environment.accounts.ended(), *_open(core)]:
        yield Account(ACCOUNT, account.activity.link, _fields(account), account.is_closed)


def _open(core: DistributionAgent) -> Iterator[LinkAccount]:
    for link, activity in list(core.environment.accounts.open.items()):
        try:
            yield LinkAccount(msgspec.structs.replace(activity), core.fanout.link(link))
        except PenstockError:  # its end is being handled
            continue


def _run(core: DistributionAgent, counted: Sequence[Counters]) -> dict[str, Any]:
    membership, accounts = core.membership, core.environment.accounts
    return {
        "role": membership.role,
        "parent": membership.parent,
        "parents_found": accounts.parents_found,
        "parents_lost": accounts.parents_lost,
        "refused": sum(each[name] for each in counted for name in REFUSALS),
        "suppressed": core.environment.counters["messages_suppressed"],
        "root_term": membership.term,
        "depth": len(membership.path),
        "children": len(core.children),
    }


def _intake(core: DistributionAgent, stream: Stream) -> dict[str, Any]:
    state = core.fanout.stream(stream.number)
    begun, accepted = core.environment.accounts.begun.get(stream.number, (0, 0))
    return {
        "stream_name": stream.info.name,
        "role": core.membership.role,
        "begun": begun,
        "last": state.last,
        "taken": state.accepted - accepted,
        "duplicates": state.duplicates,
        "root_term": state.term,
    }


def _fields(account: LinkAccount) -> dict[str, Any]:
    activity, state = account.activity, account.state
    return {
        "party": activity.name,
        "role": activity.role,
        "class_name": activity.cls,
        "link": activity.link,
        "received": activity.published if activity.role == "publisher" else state.packets_in,
        "bytes_in": state.bytes_in,
        "sent": state.packets_out,
        "bytes_out": state.bytes_out,
        "fetched": activity.fetched,
        "portions": activity.portions,
        "lagging": activity.lagging,
        "conflated": state.conflated,
        "gone": activity.gone,
        "diverged": activity.diverged,
        "duplicates": state.duplicates,
        "dropped": state.dropped,
        "revoked": activity.revoked,
    }
