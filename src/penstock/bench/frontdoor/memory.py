"""The resident memory of the plant that `penstock init` makes."""

import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.bench.harness import Result, resident, result
from penstock.bench.transports import check
from penstock.demo.layout import write_layout
from penstock.demo.reports import FIRST_PLANT
from penstock.feed.adapter_config import AdapterConfig
from penstock.node.plant import Plant
from penstock.node.running import RunningPlant

IDLE_SECONDS = 30.0
GOALS = {"adapter_rss_mb": 120.0, "plant_rss_mb": 600.0}


def run() -> Iterator[Result]:
    with TemporaryDirectory() as folder:
        write_layout(Path(folder), FIRST_PLANT, user="alice")
        plant = Plant.load(Path(folder) / "plant.toml")
        with RunningPlant(plant, log_level="ERROR") as running:
            check(running.start(), "; ".join(running.faults))
            deadline = time.monotonic() + IDLE_SECONDS
            while (left := deadline - time.monotonic()) > 0:
                running.poll(left)
            members = {name: node.member for name, node in running.nodes.items()}
            found = {name: resident(member.pid) for name, member in members.items() if member is not None}
            template = resident(running.template_pid)
            own = resident("self")
            running.stop()
    adapters = {name: found[name].rss for name in found if isinstance(plant.nodes[name], AdapterConfig)}
    whole = [*found.values(), template, own]
    conditions = (
        f"the plant of `penstock init`: {len(found)} nodes, with an exchange of 1,000 messages/s, "
        f"{IDLE_SECONDS:.0f} s after the start"
    )
    nodes = ", ".join(f"{name} {each.rss:.0f} ({each.pss:.0f})" for name, each in found.items())
    yield result(
        "frontdoor",
        "adapter_rss_mb",
        max(adapters.values()),
        "MB",
        against=f"the goal; {', '.join(f'{name}: {rss:.0f}' for name, rss in adapters.items())}",
        against_value=GOALS["adapter_rss_mb"],
        conditions=f"{conditions}; resident pages of the larger adapter",
    )
    yield result(
        "frontdoor",
        "plant_rss_mb",
        sum(each.pss for each in whole),
        "MB",
        against=f"the goal; the sum of RSS, which counts shared pages once per process, is "
        f"{sum(each.rss for each in whole):.0f}. RSS (Pss) of nodes: {nodes}; template {template.rss:.0f} "
        f"({template.pss:.0f}), supervisor {own.rss:.0f} ({own.pss:.0f})",
        against_value=GOALS["plant_rss_mb"],
        conditions=f"{conditions}; nodes, their template and the supervisor; a resident page counts once, however many "
        "processes share it (Pss)",
    )
