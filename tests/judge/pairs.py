"""Faults of a pair of message routers under test, besides the faults of each router."""

import contextlib
from collections.abc import Callable
from typing import TypeAlias

from integration.assured_kit import RouterProcess
from integration.voting_kit import LEASE_MS
from judge.crews import Crew
from judge.faults import Fault, Full, Killed, Lost, Paused
from judge.stage import Stage
from penstock.base.errors import PenstockError
from waiting import wait_until

TAKING_OVER_SECONDS = 4 * LEASE_MS / 1_000
ToRouter: TypeAlias = Callable[[RouterProcess], Fault]


class ToActive(Fault):
    """A fault of the router that is active when the fault begins, or of the other one."""

    def __init__(self, stage: Stage, make: ToRouter, *, is_standby: bool = False) -> None:
        self._find = stage.standby if is_standby else stage.active
        self._make = make

    def begin(self) -> None:
        self._fault = self._make(self._find())
        self.name = self._fault.name
        self._fault.begin()

    def end(self) -> None:
        self._fault.end()


class Replaced(Fault):
    """The active router has a fault, and an operator makes the other one active by force."""

    def __init__(self, stage: Stage, make: ToRouter) -> None:
        self._stage = stage
        self._make = make

    def begin(self) -> None:
        active = self._stage.active()
        self._fault = self._make(active)
        self.name = f"{self._fault.name}, and replaced"
        self._fault.begin()
        self._stage.switch_to(self._stage.other_than(active), force=True)

    def end(self) -> None:
        self._fault.end()
        self._stage.wait_in_step()


class Switched(Fault):
    """A planned switch by an operator; it may be refused if the routers are not in sync."""

    name = "switched"

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def begin(self) -> None:
        with contextlib.suppress(PenstockError):
            self._stage.switch_to(self._stage.standby())

    def end(self) -> None:
        self._stage.active()


class Stopped(Fault):
    """Its operator stops a router, which hands over if possible, and restarts it."""

    def __init__(self, router: RouterProcess) -> None:
        self.name = f"{router.config.name} stopped"
        self._router = router

    def begin(self) -> None:
        self._router.stop()

    def end(self) -> None:
        self._router.start()


class Outlived(Fault):
    """The active router has a fault until the other one has taken over automatically; or for the usual time of a
    takeover, because a router that lacks messages does not take over (REPL-8)."""

    def __init__(self, stage: Stage, make: ToRouter) -> None:
        self._stage = stage
        self._make = make

    def begin(self) -> None:
        active = self._stage.active()
        self._fault = self._make(active)
        self.name = f"{self._fault.name} until the other is active"
        self._fault.begin()
        other = self._stage.other_than(active)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: other.status().role == "active", "the other router", TAKING_OVER_SECONDS)

    def end(self) -> None:
        self._fault.end()
        self._stage.active()


def killed(router: RouterProcess) -> Fault:
    return Killed(router, router.config.name)


def paused(router: RouterProcess) -> Fault:
    return Paused(router, router.config.name)


def full(router: RouterProcess) -> Fault:
    return Full(router, router.config.name)


def isolated(stage: Stage) -> ToRouter:
    """Cut the router off from all others, in both directions."""

    def make(router: RouterProcess) -> Fault:
        others = [stage.host_of(stage.other_than(router)), stage.witness_host, *stage.client_hosts]
        return Lost(f"{router.config.name} isolated", [stage.host_of(router)], others)

    return make


def apart(stage: Stage, *, is_mutual: bool = True) -> ToRouter:
    """Cut the path from the router to the other router, with `is_mutual` in both directions; all other paths work."""

    def make(router: RouterProcess) -> Fault:
        name = f"{router.config.name} {'apart' if is_mutual else 'not heard by the other'}"
        other = stage.host_of(stage.other_than(router))
        return Lost(name, [stage.host_of(router)], [other], is_mutual=is_mutual)

    return make


def far_from_clients(stage: Stage) -> ToRouter:
    """One of the hosts with clients cannot reach the router."""
    return lambda router: Lost(f"{router.config.name} far from clients", [stage.host_of(router)], [stage.left])


def far_from_witness(stage: Stage) -> ToRouter:
    return lambda router: Lost(
        f"{router.config.name} far from the witness", [stage.host_of(router)], [stage.witness_host]
    )


def of_routers(stage: Stage) -> list[Fault]:
    """After these faults the same router is active, or the other one took over by a planned switch: nothing is lost."""
    kinds: list[ToRouter] = [killed, paused, full, Stopped, isolated(stage), far_from_clients(stage)]
    kinds += [apart(stage), apart(stage, is_mutual=False)]
    if stage.witness is not None:
        kinds.append(far_from_witness(stage))
    return [Switched(stage), *(ToActive(stage, make, is_standby=each) for make in kinds for each in (False, True))]


def by_force(stage: Stage) -> list[Fault]:
    return [Replaced(stage, make) for make in (killed, paused, apart(stage))]


def by_themselves(stage: Stage) -> list[Fault]:
    return [Outlived(stage, make) for make in (killed, paused, isolated(stage))]


def of_clients(crews: list[Crew]) -> list[Fault]:
    return [make(crew, crew.name) for crew in crews for make in (Killed, Paused)]
