"""An agent's account of its streams, its neighbours and itself, in virtual time."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from account_kit import recorded, tree_accounts
from penstock.base.counters import Counters
from penstock.runtime.accounts import UNWRITTEN_MAX, Account, AccountRecorder, AccountsConfig
from penstock.sim.tree.nodes import AgentNode
from penstock.spark.pipeline.audit.trees import TreeSection
from penstock.tree.core.accounts import Accounts
from penstock.tree.core.control import OLDEST
from penstock.tree.core.infostream import Diverged, Gone, Lagging, Revoked
from penstock.tree.core.kernel.notices import LinkState
from penstock.tree.live.account_rows import account_rows
from unit.tree_stage import Stage


def rows_of(node: AgentNode) -> list[Account]:
    return list(account_rows(node.agent, []))


def of(given: list[Account], model: str) -> list[dict[str, object]]:
    return [each.fields for each in given if each.model.name == model]


def test_received_and_sent_messages_are_counted() -> None:
    stage = Stage()
    middle = {name: stage.agent(name) for name in ("left", "right")}
    leaf = stage.agent("leaf", "left", alternates=(stage.place_of("right"),))
    app = stage.subscriber("app", "leaf")
    stage.up()
    leaf.agent.environment.accounts.keep(UNWRITTEN_MAX)
    stage.publish(20)
    late = stage.subscriber("late", "leaf", begin=OLDEST)
    late.start()
    stage.wait(300)
    assert len(stage.got(late)) == 20
    (stream,) = of(rows_of(stage.root), "agent_intake")
    assert (stream["role"], stream["begun"], stream["last"], stream["taken"]) == ("root", 0, 20, 20)
    links = {str(each["party"]): each for each in of(rows_of(leaf), "agent_account")}
    parent = leaf.agent.membership.parent
    assert links[parent]["role"] == "parent"
    assert int(str(links[parent]["received"])) >= 20, "the messages, and its infostream"
    assert (links["app"]["role"], links["app"]["sent"], links["app"]["fetched"]) == ("subscriber", 20, 0)
    assert (links["late"]["sent"], links["late"]["fetched"]) == (0, 20)
    (run,) = of(rows_of(leaf), "agent_run")
    assert (run["parent"], run["parents_found"], run["parents_lost"], run["depth"]) == (parent, 1, 0, 3)

    middle[parent].crash()
    stage.wait(3_000)
    stage.publish(5)
    given = rows_of(leaf)
    (run,) = of(given, "agent_run")
    (other,) = middle.keys() - {parent}
    assert (run["parent"], run["parents_found"], run["parents_lost"]) == (other, 2, 1)
    assert [each.fields["party"] for each in given if each.is_closed] == [parent]
    assert not any(each.is_closed for each in rows_of(leaf)), "its last account is reported once"
    assert {each["party"] for each in of(given, "agent_account")} == {"left", "right", "app", "late"}
    assert stage.got(app) == list(range(1, 26))


def test_slow_consumers_and_reported_losses_are_counted() -> None:
    accounts = Accounts()
    accounts.begin(1, "slow", "subscriber")
    accounts.begin(2, "quick", "subscriber")
    for info in (Lagging(1, 1, 7, 1), Gone(1, 1, 3, 5), Diverged(1, 1, 8, 8), Revoked(("md.>",))):
        accounts.informed(info, [1, 99])
    slow, quick = accounts.open[1], accounts.open[2]
    assert (slow.lagging, slow.gone, slow.diverged, slow.revoked) == (1, 3, 1, 1)
    assert (quick.lagging, quick.gone, quick.diverged, quick.revoked) == (0, 0, 0, 0)
    accounts.end(1, LinkState(*range(9)))
    assert accounts.ended() == [], "accounts are not configured here"
    accounts.keep(1)
    accounts.end(2, LinkState(*range(9)))
    assert [each.activity for each in accounts.ended()] == [quick]


def test_accounts_in_the_journal_are_messages(tmp_path: Path) -> None:
    stage = Stage()
    leaf = stage.agent("leaf")
    app = stage.subscriber("app", "leaf")
    stage.up()
    leaf.agent.environment.accounts.keep(UNWRITTEN_MAX)

    async def rows() -> list[Account]:
        return rows_of(leaf)

    config = AccountsConfig(path=str(tmp_path / "accounts"))
    book = AccountRecorder(config, "penstock.tree.leaf.{}", rows, Counters("test"), agent="leaf", tree="tree")
    book.start()

    async def give() -> None:
        stage.publish(3)
        await book.record()
        await book.record()  # no change
        app.stop()
        stage.wait(2_000)
        await book.close()

    asyncio.run(give())
    rows = recorded(tmp_path / "accounts")
    assert [(row["state"], row["sent"]) for row in rows if row.get("party") == "app"] == [("open", 3), ("closed", 3)]
    assert [row["taken"] for row in rows if row["model"] == "agent_intake"][-1] == 3
    assert {(row["agent"], row["tree"]) for row in rows} == {("leaf", "tree")}
    assert {row["model"] for row in rows if row["state"] == "closed"} == {"agent_run", "agent_intake", "agent_account"}


# Audit


@pytest.mark.parametrize(
    ("changes", "summary", "verdict"),
    [
        ({}, "0 messages reported as missing; every account is right", "good"),
        ({"root": {"taken": 999}}, "1 account wrong", "bad"),  # a number was not distributed
        ({"leaf": {"last": 1_501}}, "1 account wrong", "bad"),  # more than the root had
        # the account continues
        ({"root": {"state": "open"}, "leaf": {"last": 1_501}}, "every account is right", "good"),
        ({"leaf": {"last": 1_501, "root_term": 65_535}}, "every account is right", "good"),  # of another root
        ({"conflated": 1}, "1 account wrong", "bad"),
        ({"conflated": 9, "class_name": "conflating"}, "9 conflated", "good"),
        ({"bytes_out": 0}, "1 account wrong", "bad"),
        ({"portions": 0}, "1 account wrong", "bad"),
        ({"gone": 4, "diverged": 1}, "5 messages reported as missing; every account is right", "bad"),
        ({"is_killed": True}, "every account is right; 1 run killed", "good"),
    ],
)
def test_the_audit_of_accounts(changes: dict[str, Any], summary: str, verdict: str) -> None:
    found = TreeSection().judged(*tree_accounts(**changes))
    assert summary in found.summary
    assert found.verdict == verdict
