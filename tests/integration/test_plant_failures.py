"""Failures in a plant of real processes: no subscriber misses a message, and the remaining nodes continue."""

import time
from pathlib import Path

import pytest

from integration.plant_kit import MARKET, PlantOptions, TestPlant


@pytest.mark.spec("ADM-3", "ADM-8", "SYNC-7")
def test_data_flows_without_the_administration_server_and_the_standby_takes_over(tmp_path: Path) -> None:
    with TestPlant(tmp_path, PlantOptions(standby=True)) as plant:
        plant.start(players=False)
        alice = plant.connect("alice")
        early = [plant.read(alice.subscribe(MARKET, transport=each)) for each in ("multicast", "tcp")]
        standby = plant.administrator(plant.admin_ports[1])
        plant.until(lambda: len(standby.status().adapters) == 2, "the standby's copy")
        plant.start_exchange()
        plant.until(lambda: all(each.messages for each in early), "messages")
        plant.until_pair()
        plant.kill("admin-1")
        plant.kill(plant.active().name)
        seen = [each.last() for each in early]
        plant.until(lambda: all(each.last() > last + 500 for each, last in zip(early, seen, strict=True)), "more")
        plant.until(lambda: standby.status().role == "primary", "the takeover")
        assert plant.running.active() is not None
        late = plant.read(plant.connect("bob").subscribe(MARKET))
        plant.until(lambda: len(late.messages) > 100, "messages of the newcomer")
        plant.settle(*early, late)
        for each in early:
            each.check_complete(first=1)
        late.check_complete()


@pytest.mark.spec("SYNC-1", "SYNC-7", "SYNC-8")
@pytest.mark.parametrize("who", ["active", "backup"])
def test_an_adapter_stands_still_for_a_while_and_nobody_misses_anything(tmp_path: Path, who: str) -> None:
    with TestPlant(tmp_path, PlantOptions(sync="active_lost_ms = 2000")) as plant:
        plant.start(players=False)
        reader = plant.read(plant.connect("alice").subscribe(MARKET))
        plant.start_exchange()
        plant.until_pair()
        active = plant.active().name
        halted = active if who == "active" else next(each.name for each in plant.alive() if each.name != active)
        with plant.halted(halted):
            since, last = time.monotonic(), reader.last()
            plant.until(lambda: time.monotonic() > since + 1.0 and reader.last() > last + 500, "messages meanwhile")
            if who == "active":
                plant.until(lambda: plant.active().name != active, "the other to take over")
        plant.until_pair()
        last = reader.last()
        plant.until(lambda: reader.last() > last + 500, "messages afterwards")
        plant.settle(reader)
        reader.check_complete(first=1)
