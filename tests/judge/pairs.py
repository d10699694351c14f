"""What happens to a pair of message routers while it is judged, besides what happens to each of them."""

import contextlib
import os
import signal
from collections.abc import Callable
from typing import TypeAlias

from integration.assured_kit import RouterProcess
from integration.pair_kit import PairOfRouters, switch_to
from integration.voting_kit import LEASE_MS, VotingPair
from judge.faults import Fault
from penstock.base.errors import PenstockError
from waiting import wait_until

AnyPair: TypeAlias = PairOfRouters | VotingPair
TAKING_OVER_SECONDS = 4 * LEASE_MS / 1_000


def active_of(pair: AnyPair) -> RouterProcess:
    """The one of the newest epoch, when there is one."""
    found: list[tuple[int, RouterProcess]] = []

    def look() -> bool:
        states = [(each.status(), each) for each in pair.routers]
        found[:] = [(status.epoch, each) for status, each in states if status.role == "active"]
        return bool(found)

    wait_until(look, "a router to be active")
    return max(found, key=lambda each: each[0])[1]


def other_of(pair: AnyPair, router: RouterProcess) -> RouterProcess:
    return next(each for each in pair.routers if each is not router)


class OfActive(Fault):
    """A fault of whichever router is active when it begins, or of the other one."""

    def __init__(self, pair: AnyPair, make: Callable[[RouterProcess], Fault], *, is_standby: bool = False) -> None:
        super().__init__(pair.one)
        self._pair = pair
        self._make = make
        self._is_standby = is_standby

    @property
    def name(self) -> str:  # type: ignore[override]
        return self._make(self.router).name

    def begin(self) -> None:
        active = active_of(self._pair)
        self.router = other_of(self._pair, active) if self._is_standby else active
        self._fault = self._make(self.router)
        self._fault.begin()

    def end(self) -> None:
        self._fault.end()


class LinkCut(Fault):
    """The routers do not hear each other; clients hear both."""

    name = "apart"

    def __init__(self, pair: AnyPair) -> None:
        super().__init__(pair.one)
        self._relay = pair.relay

    def begin(self) -> None:
        self._relay.is_cut = True

    def end(self) -> None:
        self._relay.is_cut = False


class Replaced(Fault):
    """The active router is killed, paused or cut off from the other one, and an operator makes that one active."""

    def __init__(self, pair: AnyPair, how: str) -> None:
        super().__init__(pair.one)
        self._pair = pair
        self._how = how

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"replaced when {self._how}"

    def begin(self) -> None:
        self.router = active_of(self._pair)
        match self._how:
            case "killed":
                self.router.kill()
            case "paused":
                os.kill(self.router.pid, signal.SIGSTOP)
            case "apart":
                self._pair.relay.is_cut = True
        switch_to(other_of(self._pair, self.router), force=True)

    def end(self) -> None:
        match self._how:
            case "killed":
                self.router.start()
            case "paused":
                os.kill(self.router.pid, signal.SIGCONT)
            case "apart":
                self._pair.relay.is_cut = False
        self._pair.wait_in_step()


class Switched(Fault):
    """An operator's order in order; if the routers are not in step by then, it may be refused."""

    name = "switched"

    def __init__(self, pair: AnyPair) -> None:
        super().__init__(pair.one)
        self._pair = pair

    def begin(self) -> None:
        standby = other_of(self._pair, active_of(self._pair))
        with contextlib.suppress(PenstockError):
            switch_to(standby)

    def end(self) -> None:
        active_of(self._pair)


class Outlived(Fault):
    """The active router is killed or paused until the other one has taken over by itself; or for as long as that would
    take: it does not while it is known to lack something (REPL-8)."""

    def __init__(self, pair: VotingPair, make: Callable[[RouterProcess], Fault]) -> None:
        super().__init__(pair.one)
        self._pair = pair
        self._make = make

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self._make(self.router).name} until the other is active"

    def begin(self) -> None:
        self.router = active_of(self._pair)
        self._fault = self._make(self.router)
        self._fault.begin()
        other = other_of(self._pair, self.router)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: other.status().role == "active", "the other router", TAKING_OVER_SECONDS)

    def end(self) -> None:
        self._fault.end()
        active_of(self._pair)


class WitnessKilled(Fault):
    name = "without a witness"

    def __init__(self, pair: VotingPair) -> None:
        super().__init__(pair.one)
        self._witness = pair.witness

    def begin(self) -> None:
        self._witness.kill()

    def end(self) -> None:
        self._witness.start()
