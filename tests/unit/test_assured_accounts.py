"""The account of a message router's endpoints, and its evaluation by the audit."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.assured_kit import Router, message, queue

from account_kit import recorded, router_accounts
from penstock.assured.live.account_rows import account_rows
from penstock.assured.wire._layout import SETTLE_REJECTED, SETTLE_RETURNED
from penstock.base.counters import Counters
from penstock.runtime.accounts import Account, AccountRecorder, AccountsConfig
from penstock.spark.pipeline.audit.routers import RouterSection


def rows_of(router: Router) -> list[Account]:
    return list(account_rows(router.core, 1))


def accounts(router: Router) -> dict[str, dict[str, Any]]:
    given = rows_of(router)
    return {each.fields.get("endpoint", "run"): each.fields for each in given}


def assert_it_adds_up(router: Router) -> None:
    given = {"router": "r", "event_time": 1, "started": 1, "state": "open"}
    run, *endpoints = [{**given, **each.fields} for each in rows_of(router)]
    found = RouterSection().judged([run], endpoints)
    assert found.verdict == "good", found.summary


def test_the_account_balances_whatever_happens_to_the_messages() -> None:
    router = Router(
        queue("a", "orders.>", deliveries_max=2), queue("small", "orders.>", messages_max=8, when_full="dead")
    )
    router.link(1)
    handle = router.publisher(1)
    flow = router.flow(1, "a")
    router.publish(1, handle, 1, *[message(str(each), ttl_ms=0) for each in range(10)])
    ids = [each.id for each in router.delivered(1)]
    router.settle(1, flow, *ids[:4])
    router.settle(1, flow, ids[4], what=SETTLE_REJECTED)
    router.settle(1, flow, ids[5], what=SETTLE_RETURNED)
    found = accounts(router)
    assert (found["run"]["accepted"], found["run"]["stored"], found["run"]["waiting"]) == (10, 10, 0)
    a, small, dead = found["a"], found["small"], found["dead"]
    assert (a["accepted"], a["delivered"], a["redelivered"], a["settled"], a["dead"]) == (10, 11, 1, 4, 1)
    assert (a["live"], a["unsettled"]) == (5, 5)
    assert (small["accepted"], small["overflowed"], small["live"]) == (8, 2, 8)
    assert dead["accepted"] == dead["live"] == 3
    assert_it_adds_up(router)
    router.publish(1, handle, 1, message("0"))
    router.publish(1, handle, 11, message("late", ttl_ms=5), message("nobody", topic="nobody.wants"))
    router.publish(1, handle, 13, message("bad", topic="orders.>"))
    router.advance(1_000)
    found = accounts(router)
    assert (found["run"]["known"], found["run"]["unmatched"], found["run"]["refused"]) == (1, 1, 1)
    assert_it_adds_up(router)


def test_a_restarted_router_starts_its_account_with_the_messages_that_it_has() -> None:
    router = Router(queue("a", "orders.>"))
    router.link(1)
    handle = router.publisher(1)
    flow = router.flow(1, "a", 3)
    router.publish(1, handle, 1, *[message(str(each)) for each in range(5)])
    router.settle(1, flow, *[each.id for each in router.delivered(1)])
    assert accounts(router)["a"]["live"] == 2
    again = router.restart()
    found = accounts(again)["a"]
    assert (found["begun"], found["accepted"], found["brought"], found["removed"], found["live"]) == (2, 0, 0, 0, 2)
    assert_it_adds_up(again)


def test_accounts_are_written_to_the_journal_and_closed(tmp_path: Path) -> None:
    router = Router(queue("a", "orders.>"))
    router.link(1)
    handle = router.publisher(1)

    async def rows() -> list[Account]:
        return rows_of(router)

    config = AccountsConfig(path=str(tmp_path / "accounts"))
    book = AccountRecorder(config, "penstock.router.r.{}", rows, Counters("test"), router="r")
    book.start()
    router.publish(1, handle, 1, message("one"))
    asyncio.run(book.close())
    rows = recorded(tmp_path / "accounts")
    assert {(row["model"], row["router"], row["state"]) for row in rows} == {
        ("router_run", "r", "closed"),
        ("router_account", "r", "closed"),
    }
    assert {row["endpoint"]: row["live"] for row in rows if row["model"] == "router_account"} == {"a": 1, "dead": 0}


# Audit


@pytest.mark.parametrize(
    ("changes", "summary", "verdict"),
    [
        ({}, "100 messages accepted, 100 acknowledged, 3 refused; 110 delivered, 10 of these again", "good"),
        ({}, "none is missing after a restart; every account adds up", "good"),
        ({"settled": 89}, "1 account wrong", "bad"),  # one message vanished
        ({"live": 6}, "1 account wrong", "bad"),  # one message has no origin
        ({"delivered": 80}, "1 account wrong", "bad"),  # settled, and never delivered
        ({"unsettled": 6}, "1 account wrong", "bad"),
        ({"run": {"stored": 59}}, "1 account wrong", "bad"),  # a loss without a receipt
        ({"run": {"stored": 59, "waiting": 1}}, "every account adds up", "good"),
        ({"after": {"begun": 4, "live": 4}}, "1 missing after a restart", "bad"),
        ({"run": {"stored": 59, "waiting": 1}, "after": {"begun": 4, "live": 4}}, "none is missing", "good"),
        ({"is_killed": True, "after": {"begun": 4, "live": 4}}, "every account adds up; 1 run killed", "good"),
    ],
)
def test_the_audit_of_accounts(changes: dict[str, Any], summary: str, verdict: str) -> None:
    found = RouterSection().judged(*router_accounts(**changes))
    assert summary in found.summary
    assert found.verdict == verdict
