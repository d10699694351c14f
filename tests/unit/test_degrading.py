"""Conditions for acknowledging messages that the other router does not have (REPL-8)."""

from typing import Any

import pytest

from assured_kit import Router
from penstock.assured.core.lease.protocol import LeaseConfig
from penstock.assured.core.pair.degradation import Degradation
from penstock.assured.core.pair.protocol import PairConfig
from penstock.assured.core.pair.uncopied import Uncopied
from penstock.base.clock import NS_PER_MS

ROUTERS = ("a", "b")
LEASE = LeaseConfig(routers=ROUTERS, witness="w")
LATE_NS = 1_000 * NS_PER_MS


class Disk:
    """A log that is stored at once."""

    is_degraded = False
    stored_through = 0

    def note_degraded(self, is_degraded: bool) -> int:
        self.is_degraded = is_degraded
        self.stored_through += 1
        return self.stored_through


class Whole:
    """A stream to a router that has all messages."""

    is_whole, backlog, oldest_ns = True, 0, None
    newest_id = through_id = 7


def degraded(lease: LeaseConfig | None) -> Degradation:
    config = PairConfig(routers=ROUTERS, lease=lease)
    made = Degradation(config, Disk(), Uncopied(config, Router().core.tables))  # type: ignore[arg-type]
    made.activate(0)
    assert made.look(None, LATE_NS) is True
    if lease is not None:
        made.look(None, LATE_NS)
        assert made.mode == "degrading", "the voters have not recorded it"
        made.noted(is_degraded=True)
    for _ in range(2):
        made.look(None, LATE_NS)
    assert made.mode == "degraded"
    return made


@pytest.mark.parametrize("lease", [None, LEASE])
def test_repl_8_a_pair_is_synchronous_again_when_the_other_router_has_everything(lease: LeaseConfig | None) -> None:
    made = degraded(lease)
    stream: Any = Whole()
    assert made.look(stream, 2 * LATE_NS) is False
    assert made.mode == "synchronous"
    assert made.keeps_up(stream) == (lease is None)
    made.noted(is_degraded=False)
    assert made.keeps_up(stream)


def test_repl_8_a_degradation_that_voters_were_asked_to_withdraw_must_be_recorded_again() -> None:
    """The withdrawal takes effect when the voters confirm it: from then on the other router can take over."""
    made = degraded(LEASE)
    stream: Any = Whole()
    assert made.look(stream, 2 * LATE_NS) is False
    made.lost(2 * LATE_NS)
    assert made.look(None, 3 * LATE_NS) is True
    for _ in range(3):
        made.look(None, 3 * LATE_NS)
    assert made.mode == "degrading"
    made.noted(is_degraded=True)
    for _ in range(2):
        made.look(None, 3 * LATE_NS)
    assert made.mode == "degraded"
