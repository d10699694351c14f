"""A node that dies repeatedly, under a real supervisor: growing pauses, and the state `failing`."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.node.plant import Plant
from penstock.node.restarts import FAILING_DEATHS, RESTART_SECONDS
from penstock.node.running import RunningPlant
from penstock.top import Watch, fetch_all, places_of_plant
from penstock.top.core.picture import NodeRow, State
from waiting import PATIENCE_SECONDS, wait_until

DOCUMENT = """
name = "trial"

[[filter]]
name = "sieve"
control.port = 0
"""


def row(plant: Plant) -> NodeRow:
    (node,) = Watch().take(asyncio.run(fetch_all(places_of_plant(plant), PATIENCE_SECONDS)), 0).nodes
    return node


def test_a_node_that_does_not_stay_up_is_failing_and_is_restarted_ever_more_slowly(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "plant.toml"
    path.write_text(DOCUMENT)
    plant = Plant.load(path)
    with RunningPlant(plant, log_level="ERROR") as running:
        assert running.start(), running.faults
        node = running.nodes["sieve"]

        def poll_until(condition: Callable[[], bool], what: str) -> None:
            wait_until(lambda: running.poll(0.01) or condition(), what)

        def is_back() -> bool:
            return node.member is not None and node.is_ready

        for deaths in range(1, FAILING_DEATHS + 1):
            assert (row(plant).state, row(plant).restarts) == (State.UP, deaths - 1)
            assert node.member is not None
            os.kill(node.member.pid, signal.SIGKILL)
            poll_until(lambda: node.member is None, "the supervisor to notice")
            assert (node.restarts.deaths, node.restarts.pause_s) == (deaths, RESTART_SECONDS[deaths - 1])
            assert ("node_failing" in caplog.messages) is (deaths == FAILING_DEATHS)
            if deaths < FAILING_DEATHS:
                poll_until(is_back, "the node to be back")
        dead = row(plant)
        assert dead.state is State.FAILING
        assert f"died {FAILING_DEATHS} times" in dead.detail
        assert "killed by SIGKILL" in dead.detail
        poll_until(is_back, "the node to be back")
        assert row(plant).state is State.FAILING, "it was not ready for long"
        assert running.kill("sieve")
        poll_until(lambda: node.member is None, "the supervisor to notice")
        assert (node.restarts.deaths, node.restarts.pause_s) == (FAILING_DEATHS, RESTART_SECONDS[0])
        poll_until(is_back, "the node to be back")
        running.stop()
    assert (plant.pages.failing("sieve"), plant.pages.restarts("sieve")) == ("", 0)
