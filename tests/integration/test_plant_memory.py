"""The resident memory of idle nodes, with generous bounds: what is preallocated is not written to before its use."""

import os
from pathlib import Path

import pytest

from penstock.bench.harness import resident
from penstock.demo.layout import write_layout
from penstock.demo.reports import FIRST_PLANT
from penstock.feed.adapter_config import AdapterConfig
from penstock.node.plant import Plant
from penstock.node.running import RunningPlant
from penstock.tree.config import AgentConfig

ADAPTER_RSS_MB_MAX = 180
AGENT_RSS_MB_MAX = 120
NODE_PSS_MB_MEAN_MAX = 60
"""On top of their own memory nodes have a share in the modules that all of them use."""


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    write_layout(tmp_path, FIRST_PLANT, user="alice")
    return Plant.load(tmp_path / "plant.toml")


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer needs memory of its own")
def test_an_idle_plant_is_small(plant: Plant) -> None:
    with RunningPlant(plant, log_level="WARNING") as running:
        assert running.start(players=False), running.faults
        found = {name: resident(node.member.pid) for name, node in running.nodes.items() if node.member is not None}
        running.stop()
        assert not running.faults
    adapters = [each for each in found if isinstance(plant.nodes[each], AdapterConfig)]
    leaves = [
        each
        for each, config in plant.nodes.items()
        if isinstance(config, AgentConfig) and config.parent and each in found
    ]
    assert len(adapters) == 2
    assert len(leaves) == 4
    assert all(found[each].rss < ADAPTER_RSS_MB_MAX for each in adapters), found
    assert all(found[each].rss < AGENT_RSS_MB_MAX for each in leaves), found
    assert sum(each.pss for each in found.values()) < NODE_PSS_MB_MEAN_MAX * len(found), found
