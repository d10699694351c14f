"""From the feed to a consumer in shared memory, every node a process of `penstock up`."""

from pathlib import Path

import pytest

from admin_kit import credentials
from integration.distribution_kit import Consumer
from integration.plant_kit import PlantOptions, TestPlant
from penstock.engine import EventKind
from penstock.net.udp import free_ports
from penstock.security.live.client import AdminClient

NODES = """
[[plant]]
name = "records"
subscribe = ["md.us.eq.>"]
control.port = {plant}
admin = {{ credentials = "filter.toml" }}

[[mux]]
name = "beside"
control.port = {mux}
upstream = {{ port = {plant}, topics = ["md.us.>"] }}
admin = {{ credentials = "filter.toml" }}
"""


def versions(consumer: Consumer, item: int) -> list[int]:
    kinds = (EventKind.REFRESH, EventKind.UPDATE)
    return [each.version for each in consumer.events if each.item == item and each.kind in kinds]


@pytest.mark.spec("TP-2", "MUX-1", "MUX-2")
def test_a_plant_is_fed_by_adapters_and_goes_on_when_one_of_them_is_killed(tmp_path: Path) -> None:
    plant_port, mux_port = free_ports(2)
    options = PlantOptions(rate=500, more=NODES.format(plant=plant_port, mux=mux_port))
    with TestPlant(tmp_path, options) as plant:
        plant.start()
        with AdminClient.connect(plant.url, credentials("alice")) as admin:
            token = admin.subscribe(["md.us.eq.>"]).token
        with Consumer(mux_port, "alice", token=token) as consumer:
            plant.until(consumer.link.attached.is_set, "the multiplexer to admit the consumer")
            number = consumer.subscribe("md.us.eq.>")
            plant.until(lambda: number in {e.subscription for e in consumer.of_kind(EventKind.LIVE)}, "the images")
            plant.until(lambda: len(consumer.of_kind(EventKind.UPDATE)) > 500, "updates")
            plant.until_pair()
            plant.kill(plant.active().name)
            seen = len(consumer.events)
            plant.until(lambda: len(consumer.of_kind(EventKind.UPDATE)) > seen + 1_000, "updates afterwards")
            assert not consumer.of_kind(EventKind.RECEIPT)
            for item in consumer.topics:
                found = versions(consumer, item)
                assert found == list(range(found[0], found[0] + len(found)))
            distributing = plant.node("beside").distributing
            plant.until(lambda: plant.node("beside").distributing, "a report of the node")
            assert distributing is not None
            assert [each.name for each in distributing.consumers] == ["alice"]
