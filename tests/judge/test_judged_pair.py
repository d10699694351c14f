"""A pair of message routers, checked by the results of its clients while routers were killed, paused, partitioned,
without a disk, and replaced (planned, by force and automatically), and while clients were killed."""

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
"""Messages without a copy are delivered when their router is active."""

REPLACED = msgspec.structs.replace(RULES, firm=frozenset({"synchronous"}))
"""Where a router is replaced by force, messages that only it had are delivered when it is active again, and settlements
that the other router does not know yet may cause redeliveries."""

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
    """Consume everything, first from one router, which must have all messages of both disks, and then from the
    other."""
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
    """REPL-3, REPL-7, REPL-10: once by a planned switch, once after a kill; consumers are killed, too."""
    with judged(tmp_path, 1) as (scene, routers):
        scene.torment([Switched(routers)], 1, [Killed(scene.crews[1], "consumers")])
        scene.torment([Replaced(routers, killed)], 1)
        end(scene, routers, REPLACED)


@pytest.mark.spec("REPL-7", "REPL-10", "REPL-14")
def test_a_pair_with_automatic_takeover_keeps_its_promises(tmp_path: Path) -> None:
    """REPL-7, REPL-10, REPL-14: the active router is unreachable, and then reachable again."""
    with judged(tmp_path, 1, is_voting=True) as (scene, routers):
        scene.torment([Outlived(routers, isolated(routers))], 1)
        end(scene, routers, REPLACED)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20, 28))
def test_a_pair_with_automatic_takeover_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
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
def test_messages_on_both_disks_survive_every_replacement(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, routers):
        scene.torment([*of_routers(routers), *3 * by_force(routers)], 25, of_clients(scene.crews))
        end(scene, routers, REPLACED)
