"""A pair of message routers, judged by what its clients were told while its routers were killed, paused, parted, had no
disk, and were replaced, in order, by force and by themselves, and while clients were killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from judge.checker import Rules
from judge.clients import all_orders
from judge.crews import Crew
from judge.faults import Killed
from judge.pairs import Outlived, Replaced, Switched, by_force, by_themselves, isolated, killed, of_clients, of_routers
from judge.scene import RULES, Scene
from judge.stage import Stage, stage

TURNS = msgspec.structs.replace(RULES, in_order=frozenset({"asynchronous", "synchronous"}))
"""What wants no copy comes when the router that has it is active."""

REPLACED = msgspec.structs.replace(RULES, firm=frozenset({"synchronous"}))
"""Where a router is replaced by force, what only it had comes when it is active again, and what the other one was not
told yet may come twice."""

SYNCHRONOUS = msgspec.structs.replace(REPLACED, kept=frozenset({"synchronous"}))
"""Rules for a history in which the other router has not been active afterwards."""


@contextmanager
def judged(directory: Path, seed: int, *, is_voting: bool = False) -> Iterator[tuple[Scene, Stage]]:
    with stage(directory, is_voting=is_voting) as routers:
        orders = all_orders(routers.access, seed, ("synchronous", "asynchronous"))
        hosts = (routers.left, routers.left, routers.right)
        crews = [Crew(each, directory, host.entered) for each, host in zip(orders, hosts, strict=True)]
        scene = Scene(directory, routers.access, seed, crews, routers.left.entered)
        try:
            yield scene, routers
        finally:
            scene.close()


def end(scene: Scene, routers: Stage, rules: Rules) -> None:
    """Everything is consumed, of one router, which must have what was on both disks, and then of the other."""
    scene.end_publishing()
    routers.wait_in_step()
    scene.consume_all()
    scene.judge(SYNCHRONOUS)
    for _ in routers.routers:
        routers.wait_in_step()
        routers.switch_to(routers.standby())
        scene.consume_all()
    scene.end()
    scene.judge(rules)


@pytest.mark.spec("REPL-3", "REPL-7", "REPL-10")
def test_a_pair_keeps_its_promises_when_the_active_router_is_replaced(tmp_path: Path) -> None:
    """REPL-3, REPL-7, REPL-10: once in order, once when it was killed, and consumers are killed."""
    with judged(tmp_path, 1) as (scene, routers):
        scene.torment([Switched(routers)], 1, [Killed(scene.crews[1], "consumers")])
        scene.torment([Replaced(routers, killed)], 1)
        end(scene, routers, REPLACED)


@pytest.mark.spec("REPL-7", "REPL-10", "REPL-14")
def test_a_pair_that_switches_by_itself_keeps_its_promises(tmp_path: Path) -> None:
    """REPL-7, REPL-10, REPL-14: nobody hears the active router any more, and then they do again."""
    with judged(tmp_path, 1, is_voting=True) as (scene, routers):
        scene.torment([Outlived(routers, isolated(routers))], 1)
        end(scene, routers, REPLACED)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20, 28))
def test_a_pair_that_switches_by_itself_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed, is_voting=True) as (scene, routers):
        assert routers.witness is not None
        without_witness = Killed(routers.witness, "witness")
        faults = [*of_routers(routers), *3 * by_themselves(routers), without_witness]
        scene.torment(faults, 25, of_clients(scene.crews))
        end(scene, routers, REPLACED)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_a_pair_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, routers):
        scene.torment(of_routers(routers), 25, of_clients(scene.crews))
        end(scene, routers, TURNS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10, 18))
def test_what_was_on_both_disks_outlives_every_replacement(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, routers):
        scene.torment([*of_routers(routers), *3 * by_force(routers)], 25, of_clients(scene.crews))
        end(scene, routers, REPLACED)
