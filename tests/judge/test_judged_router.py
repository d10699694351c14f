"""One message router, judged by what its clients were told while it was killed, paused, cut off and had no disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.assured_kit import router_config, router_process
from judge.faults import Cable, CutOff, Fault, Full, Killed, Paused
from judge.scene import ENDPOINTS, SETTINGS, Scene
from penstock.assured.node import RouterAccess


@contextmanager
def judged(directory: Path, seed: int) -> Iterator[tuple[Scene, list[Fault]]]:
    cable = Cable()
    try:
        access = RouterAccess(port=0, advertised=cable.place)
        config = router_config(directory / "state", *ENDPOINTS, control=access, replicate_by="publisher", **SETTINGS)
        with router_process(config, directory) as router:
            cable.target = router.place
            scene = Scene(directory, (cable.place,), seed)
            try:
                yield scene, [Killed(router), Paused(router), CutOff(router, cable), Full(router)]
            finally:
                scene.close()
    finally:
        cable.close()


@pytest.mark.spec("REPL-1", "REPL-10")
def test_a_router_keeps_its_promises_whatever_happens_to_it(tmp_path: Path) -> None:
    """REPL-1, REPL-10: killed, paused, cut off and with a full disk, each once."""
    with judged(tmp_path, 1) as (scene, faults):
        for fault in faults:
            scene.torment([fault], 1)
        scene.drain()
        scene.judge()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 10))
def test_a_router_keeps_its_promises_for_long(tmp_path: Path, seed: int) -> None:
    with judged(tmp_path, seed) as (scene, faults):
        scene.torment(faults, 25)
        scene.drain()
        scene.judge()
