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

RUN, INTAKE, ACCOUNT = shipped("agent_run"), shipped("agent_intake"), shipped("agent_account")


REFUSALS = ("consumers_refused", "requests_refused", "connections_refused")


def account_rows(core: DistributionAgent, counted: Sequence[Counters]) -> Iterator[Account]:
    """The accounts as they stand, read in the core's thread; a link that has ended is in them once. `counted` count
    refusals."""
    yield Account(RUN, "", _run(core, counted))
    for number in list(core.board.streams):
        yield Account(INTAKE, number, _intake(core, number))
    for account in [*core.board.ledger.ended(), *_open(core)]:
        yield Account(ACCOUNT, account.dealings.link, _fields(account), account.is_closed)


def _open(core: DistributionAgent) -> Iterator[LinkAccount]:
    for link, dealings in list(core.board.ledger.open.items()):
        try:
            yield LinkAccount(msgspec.structs.replace(dealings), core.fanout.link(link))
        except PenstockError:  # its end is on its way
            continue


def _run(core: DistributionAgent, counted: Sequence[Counters]) -> dict[str, Any]:
    board = core.board
    return {
        "role": board.role,
        "parent": board.parent,
        "parents_found": board.ledger.parents_found,
        "parents_lost": board.ledger.parents_lost,
        "refused": sum(each[name] for each in counted for name in REFUSALS),
        "suppressed": board.counters["messages_suppressed"],
        "root_term": board.term,
        "depth": len(board.path),
        "children": len(board.children),
    }


def _intake(core: DistributionAgent, number: int) -> dict[str, Any]:
    board = core.board
    state = core.fanout.stream(number)
    begun, accepted = board.ledger.begun.get(number, (0, 0))
    return {
        "stream_name": board.streams[number].info.name,
        "role": board.role,
        "begun": begun,
        "last": state.last,
        "taken": state.accepted - accepted,
        "duplicates": state.duplicates,
        "root_term": state.term,
    }


def _fields(account: LinkAccount) -> dict[str, Any]:
    dealings, state = account.dealings, account.state
    return {
        "party": dealings.name,
        "role": dealings.way,
        "class_name": dealings.cls,
        "link": dealings.link,
        "received": dealings.published if dealings.way == "publisher" else state.packets_in,
        "bytes_in": state.bytes_in,
        "sent": state.packets_out,
        "bytes_out": state.bytes_out,
        "fetched": dealings.fetched,
        "portions": dealings.portions,
        "lagging": dealings.lagging,
        "conflated": state.conflated,
        "gone": dealings.gone,
        "diverged": dealings.diverged,
        "duplicates": state.duplicates,
        "dropped": state.dropped,
        "revoked": dealings.revoked,
    }
