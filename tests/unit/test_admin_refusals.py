"""Repeated refusals are summarised in the log."""

from pathlib import Path

import pytest

from admin_kit import config
from admin_plant import NOW_NS
from penstock.admin import Caller
from penstock.admin.core.refusals import ENTRIES_MAX, OTHERS, Refusals
from penstock.admin.live.server import AdminService
from penstock.base.clock import NS_PER_SECOND, SystemClock
from penstock.base.errors import ForbiddenError, NotEntitledError

ALICE = Caller("alice", frozenset(), "127.0.0.1")


class HandClock(SystemClock):
    now_ns = NOW_NS

    def wall_ns(self) -> int:
        return self.now_ns


@pytest.mark.spec("ADM-1")
def test_refusals_within_a_second_are_logged_in_two_lines(tmp_path: Path) -> None:
    clock = HandClock()
    service = AdminService(config(tmp_path), clock)
    try:
        after = service.audit_after(0).next_after
        for number in range(100):
            service.refuse(ALICE, "subscribe", NotEntitledError(f"number {number}"))
        service.refuse(ALICE, "subscribe", ForbiddenError("another one"))
        service.tick()
        lines = service.audit_after(after).entries
        assert [(each.code, each.detail) for each in lines] == [
            ("not-entitled", "number 0"),
            ("forbidden", "another one"),
        ]
        clock.now_ns += NS_PER_SECOND
        service.tick()
        (line,) = service.audit_after(lines[-1].number).entries
        assert (line.code, line.detail) == ("not-entitled", "99 more, the last: number 99")
        service.refuse(ALICE, "subscribe", NotEntitledError("later"))
        assert service.audit_after(line.number).entries[0].detail == "later"
    finally:
        service.close()


def test_the_table_of_refusals_is_bounded() -> None:
    refusals = Refusals()
    error = ForbiddenError("no")
    names = [f"c{number}" for number in range(ENTRIES_MAX + 3)]
    first = [name for name in names if refusals.is_first(ALICE._replace(client=name), "x", error, NOW_NS)]
    assert first == names[: ENTRIES_MAX + 1]
    (others,) = refusals.take_due(NOW_NS + NS_PER_SECOND)
    assert (others.caller.client, others.repeats) == (OTHERS, 2)
