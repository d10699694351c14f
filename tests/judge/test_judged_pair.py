"""A pair of message routers, judged by what its clients were told while its routers were killed, paused, parted, had no
disk, and were replaced, in order and by force."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from integration.pair_kit import PairOfRouters, pair_of_routers, switch_to
from integration.voting_kit import VotingPair
from judge.checker import Rules
from judge.faults import Fault, Full, Killed, Paused
from judge.pairs import AnyPair, LinkCut, OfActive, Outlived, Replaced, Switched, WitnessKilled, active_of, other_of
from judge.scene import ENDPOINTS, RULES, SETTINGS, Scene

ROUTER = {"replicate_by": "publisher", **SETTINGS}

TURNS = msgspec.structs.replace(RULES, in_order=frozenset({"asynchronous", "synchronous"}))
"""What wants no copy comes when the router that has it is active."""

REPLACED = msgspec.structs.replace(RULES, firm=frozenset({"synchronous"}))
"""Where a router is replaced by force, what only it had comes when it is active again, and what the other one was not
told yet may come twice."""

SYNCHRONOUS = msgspec.structs.replace(REPLACED, kept=frozenset({"synchronous"}))
"""What holds although the other router has not been active since."""


@contextmanager
def judged(directory: Path, seed: int) -> Iterator[tuple[Scene, PairOfRouters]]:
    routers = pair_of_routers(directory, *ENDPOINTS, router=ROUTER, silence_ms=1_000)
    with routers as pair, clients(directory, pair, seed) as scene:
        yield scene, pair


@contextmanager
def judged_with_witness(directory: Path, seed: int) -> Iterator[tuple[Scene, VotingPair]]:
    routers = VotingPair(directory, *ENDPOINTS, router=ROUTER, silence_ms=1_000)
    with routers as pair, clients(directory, pair, seed) as scene:
        yield scene, pair


@contextmanager
def clients(directory: Path, pair: AnyPair, seed: int) -> Iterator[Scene]:
    scene = Scene(directory, tuple(pair.places), seed, ("synchronous", "asynchronous"))
    try:
        yield scene
    finally:
        scene.close()


def gentle(pair: AnyPair) -> list[Fault]:
    """After these the same router is active, or the other one took over in order: nothing is lost."""
    kinds = [(make, is_standby) for make in (Killed, Paused, Full) for is_standby in (False, True)]
    of_one = [OfActive(pair, make, is_standby=is_standby) for make, is_standby in kinds]
    return [*of_one, LinkCut(pair), Switched(pair)]


def forceful(pair: PairOfRouters) -> list[Fault]:
    return [Replaced(pair, how) for how in ("killed", "paused", "apart")]


def end(scene: Scene, pair: AnyPair, rules: Rules) -> None:
    """Everything is consumed, of one router, which must have what was on both disks, and then of the other."""
    scene.end_publishing()
    pair.wait_in_step()
    scene.consume_all()
    scene.judge(SYNCHRONOUS)
    for _ in pair.routers:
        pair.wait_in_step()
        switch_to(other_of(pair, active_of(pair)))
        scene.consume_all()
    scene.end()
    scene.judge(rules)


@pytest.mark.spec("REPL-3", "REPL-7", "REPL-10")
def test_a_pair_keeps_its_promises_when_the_active_router_is_replaced(tmp_path: Path) -> None:
    """REPL-3, REPL-7, REPL-10: once in order, once when it was killed."""
    with judged(tmp_path, 1) as (scene, pair):
        for fault in (Switched(pair), Replaced(pair, "killed")):
            scene.torment([fault], 1)
        end(scene, pair, REPLACED)


@pytest.mark.spec("REPL-7", "REPL-10", "REPL-14")
def test_a_pair_that_switches_by_itself_keeps_its_promises(tmp_path: Path) -> None:
    """REPL-7, REPL-10, REPL-14: the active router is killed, and comes back."""
    with judged_with_witness(tmp_path, 1) as (scene, pair):
        scene.torment([Outlived(pair, Killed)], 1)
        end(scene, pair, REPLACED)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20, 28))
def test_a_pair_that_switches_by_itself_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
    with judged_with_witness(tmp_path, seed) as (scene, pair):
        by_itself = [Outlived(pair, Killed), Outlived(pair, Paused)]
        scene.torment([*gentle(pair), *3 * by_itself, WitnessKilled(pair)], 25)
        end(scene, pair, REPLACED)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_a_pair_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, pair):
        scene.torment(gentle(pair), 25)
        end(scene, pair, TURNS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 18))
def test_what_was_on_both_disks_outlives_every_replacement(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, pair):
        scene.torment([*gentle(pair), *2 * forceful(pair)], 25)
        end(scene, pair, REPLACED)
