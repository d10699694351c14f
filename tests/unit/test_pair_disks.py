"""Routers of a pair with a lease whose disks fail (REPL-14)."""

from typing import Any

import pytest

from penstock.assured.config import RouterConfig
from penstock.assured.core.lease.protocol import Ask, Granted, Heard, Keep, Kept, LeaseConfig, Memory, Released, Tell
from penstock.assured.core.pair.pair import Pair
from penstock.assured.core.pair.protocol import PairConfig, SwitchHere
from penstock.assured.core.router.events import Append, DiskFailed, DiskRecovered, DiskTroubled, Start, Stored
from penstock.assured.core.router.router import MessageRouter
from penstock.base.core import Tick
from penstock.sim import SeededRandomness

LEASE = LeaseConfig(routers=("a", "b"), witness="w", lease_ms=1_000)
LEASE_NS = LEASE.promise_ns
STEP_NS = LEASE_NS // 20

pytestmark = pytest.mark.spec("REPL-14")


class Router:
    """The first router of a new pair; its witness grants every request."""

    def __init__(self) -> None:
        randomness = SeededRandomness(1, "a")
        router = MessageRouter(RouterConfig(name="a"), randomness)
        self.pair = Pair(router, PairConfig(routers=("a", "b"), lease=LEASE, degrade="never"), randomness, Memory())
        self.now_ns = 0
        self.is_storing = True
        self.asked = 0
        self.released = 0
        self.tell(Start(1, 0))

    def tell(self, event: Any) -> None:
        for each in self.pair.handle(event, self.now_ns):
            match each:
                case Append() if self.is_storing:
                    self.tell(Stored(each.through))
                case Keep():
                    self.tell(Kept())
                case Tell("w", Ask(epoch, number, note, is_degraded)):
                    self.asked += 1
                    self.tell(Heard("w", Granted(epoch, number, note, is_degraded)))
                case Tell("w", Released()):
                    self.released += 1

    def run(self, leases: int) -> None:
        for _ in range(20 * leases):
            self.now_ns += STEP_NS
            self.tell(Tick())


def test_an_active_router_with_a_failed_disk_yields() -> None:
    router = Router()
    router.run(3)
    assert router.pair.is_active
    router.tell(DiskFailed("a sync failed"))
    assert (router.pair.is_active, router.released) == (False, 1)
    router.asked = 0
    router.tell(SwitchHere(is_forced=True))
    router.run(5)
    assert (router.pair.is_active, router.asked) == (False, 0)


def test_a_router_with_a_full_disk_stays_active_but_does_not_become_active() -> None:
    router = Router()
    router.run(3)
    router.tell(DiskTroubled("no space"))
    router.run(3)
    assert router.pair.is_active
    router = Router()
    router.tell(DiskTroubled("no space"))
    router.run(5)
    assert not router.pair.is_active
    router.tell(DiskRecovered())
    router.run(3)
    assert router.pair.is_active


def test_a_router_whose_disk_does_not_store_the_epoch_yields_to_the_other() -> None:
    router = Router()
    router.is_storing = False
    router.run(3)
    assert (router.pair.is_active, router.released) == (False, 1)
    router.run(10)
    assert router.released > 1, "it tries again, and yields again"
