"""A single message router, checked by the results of its clients while it was killed, paused, cut off and without a
disk, and while clients were killed. Needs no privileges, because a relay cuts it off."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.assured_kit import router_config, router_process
from integration.relay import Relay
from judge.clients import all_orders
from judge.crews import Crew
from judge.faults import CutOff, Fault, Full, Killed, Paused
from judge.scene import ENDPOINTS, SETTINGS, Scene
from judge.workload import Access
from penstock.assured.node_config import RouterAccess
from penstock.net.udp import free_ports


@contextmanager
def judged(directory: Path, seed: int) -> Iterator[tuple[Scene, list[Fault], list[Fault]]]:
    """With the faults of the router and its clients."""
    (port,) = free_ports(1)
    with Relay(port) as relay:
        place = f"127.0.0.1:{relay.port}"
        control = RouterAccess(port=port, advertised=place)
        config = router_config(directory / "state", *ENDPOINTS, control=control, **SETTINGS)
        with router_process(config, directory) as router:
            access = Access((place,))
            crews = [Crew(orders, directory) for orders in all_orders(access, seed, ("synchronous", "none"))]
            scene = Scene(directory, access, seed, crews)
            try:
                of_router = [make(router, "router") for make in (Killed, Paused, Full)]
                of_clients = [Killed(crew, crew.name) for crew in crews]
                yield scene, [*of_router, CutOff(relay)], of_clients
            finally:
                scene.close()


def end(scene: Scene) -> None:
    scene.end_publishing()
    scene.consume_all()
    scene.end()
    scene.judge()


@pytest.mark.spec("REPL-1", "REPL-10")
def test_a_router_keeps_its_promises_with_any_fault(tmp_path: Path) -> None:
    """REPL-1, REPL-10: killed, paused, cut off and with a full disk, each once, and clients killed."""
    with judged(tmp_path, 1) as (scene, of_router, of_clients):
        for fault in of_router:
            scene.torment([fault], 1, of_clients)
        end(scene)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_a_router_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, of_router, of_clients):
        scene.torment([*of_router, *of_clients], 25, of_clients)
        end(scene)
