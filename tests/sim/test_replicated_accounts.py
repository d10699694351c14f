"""The accounts of both routers of a pair add up at any time, over switches and restarts (REPL-7)."""

from typing import Any

import pytest

from penstock.assured.live.account_rows import account_rows
from penstock.sim.replicated.nodes import PairNode
from penstock.sim.replicated.plant import run_replicated_seed
from penstock.spark.pipeline.audit.routers import RouterSection

EVENTS = 500
"""Number of events between two checks of the accounts."""

GIVEN = {"event_time": 1, "started": 1, "state": "open"}


@pytest.mark.spec("REPL-7")
def test_messages_stored_as_a_standby_are_in_the_account_of_the_active_router(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle, looked, brought = PairNode.handle, list[str](), 0

    def handle_and_look(self: PairNode, event: Any) -> None:
        nonlocal brought
        handle(self, event)
        pair = self.pair()
        looked.append(self.name)
        if len(looked) % EVENTS or pair is None or pair.router.tables.is_recovering:
            return
        run, *endpoints = [{**GIVEN, "router": self.name, **each.fields} for each in account_rows(pair.router, 0)]
        found = RouterSection().judged([run], endpoints)
        assert found.verdict == "good", (run, endpoints)
        assert run["waiting"] >= 0, "a resent message is acknowledged again, and counts as accepted again"
        if pair.is_active:
            brought += sum(each["brought"] for each in endpoints)

    monkeypatch.setattr(PairNode, "handle", handle_and_look)
    for seed in (1, 2):
        run_replicated_seed(seed, seconds=20)
    assert brought
