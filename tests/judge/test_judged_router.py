"""One message router, judged by what its clients were told while it was killed, paused, cut off and had no disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.assured_kit import router_config, router_process
from integration.relay import Relay
from judge.faults import CutOff, Fault, Full, Killed, Paused
from judge.scene import ENDPOINTS, SETTINGS, Scene
from penstock.assured.node import RouterAccess
from penstock.net.udp import free_ports


@contextmanager
def judged(directory: Path, seed: int) -> Iterator[tuple[Scene, list[Fault]]]:
    (port,) = free_ports(1)
    with Relay(port) as relay:
        place = f"127.0.0.1:{relay.port}"
        access = RouterAccess(port=port, advertised=place)
        config = router_config(directory / "state", *ENDPOINTS, control=access, replicate_by="publisher", **SETTINGS)
        with router_process(config, directory) as router:
            scene = Scene(directory, (place,), seed, ("synchronous", "none"))
            try:
                yield scene, [Killed(router), Paused(router), CutOff(router, relay), Full(router)]
            finally:
                scene.close()


@pytest.mark.spec("REPL-1", "REPL-10")
def test_a_router_keeps_its_promises_whatever_happens_to_it(tmp_path: Path) -> None:
    """REPL-1, REPL-10: killed, paused, cut off and with a full disk, each once."""
    with judged(tmp_path, 1) as (scene, faults):
        for fault in faults:
            scene.torment([fault], 1)
        scene.end_publishing()
        scene.consume_all()
        scene.end()
        scene.judge()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_a_router_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, faults):
        scene.torment(faults, 25)
        scene.end_publishing()
        scene.consume_all()
        scene.end()
        scene.judge()
