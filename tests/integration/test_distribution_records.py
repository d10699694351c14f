"""All classes through a real plant and multiplexer, as applications read them; rules that change while they run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.distribution_kit import (
    Consumer,
    NodeHere,
    mux_config,
    node_here,
    packed,
    plant_config,
    quote,
    trade,
)
from penstock.engine import EngineConfig, EventKind, MeteringLimits, TransmissionClass
from penstock.engine.client.consumer import ConsumerRequest
from penstock.engine.client.record_reader import RecordsReader
from penstock.engine.client.records import Records
from penstock.model import MessageModel, shipped
from waiting import wait_until

ALL = EngineConfig(classes=("critical", "adaptive", "metered"))


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[tuple[NodeHere, NodeHere]]:
    (tmp_path / "classes.toml").write_text('default = "critical"\n')
    engine = EngineConfig(classes=("critical", "adaptive", "metered"), keeps="wanted", has_upstream=True)
    with (
        node_here(plant_config()) as plant,
        node_here(mux_config(plant.port, engine=engine, classes=str(tmp_path / "classes.toml"))) as mux,
    ):
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        yield plant, mux


def records(mux: NodeHere, *topics: str, name: str = "reader") -> Records:
    return Records(
        RecordsReader(ConsumerRequest(host="127.0.0.1", port=mux.port, topics=topics, name=name, cls="adaptive"))
    )


@pytest.mark.spec("ADPT-1", "ADPT-5", "MUX-1")
def test_records_are_read_in_regions_of_the_multiplexer(chain: tuple[NodeHere, NodeHere]) -> None:
    plant, mux = chain
    plant.publish(*(packed(f"md.S{n}.quote", quote(f"S{n}", 1)) for n in range(200)))
    with records(mux, "md.*.quote") as found:
        wait_until(lambda: len(found) == 200, "all records")
        for number in range(2, 50):
            plant.publish(*(packed(f"md.S{n}.quote", quote(f"S{n}", number)) for n in range(200)))
        wait_until(lambda: all(found[f"md.S{n}.quote"].source_seq == 49 for n in range(200)), "the newest of each")
        plant.publish(packed("md.new.quote", quote("new", 7)))  # an item that comes later, with a larger region
        wait_until(lambda: "md.new.quote" in list(found), "the new item")
        assert found["md.new.quote"].source_seq == 7
    wait_until(lambda: not mux.node._handover._offers, "the segments to be withdrawn")


@pytest.mark.spec("ADPT-3")
def test_those_who_may_have_the_same_share_a_region(chain: tuple[NodeHere, NodeHere]) -> None:
    plant, _ = chain
    plant.publish(packed("md.A.quote", quote("A", 1)))
    with node_here(mux_config(plant.port, name="sharing", shared_regions=True)) as mux:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        with records(mux, "md.>", name="one") as one, records(mux, "md.>", name="two") as two:
            wait_until(lambda: len(one) == len(two) == 1, "the records")
            regions = mux.node._data._segments._regions
            assert len(regions) == 2
            assert len({id(each) for each in regions.values()}) == 1
            plant.publish(packed("md.A.quote", quote("A", 2)))
            wait_until(lambda: one["md.A.quote"].source_seq == two["md.A.quote"].source_seq == 2, "the update")
        wait_until(lambda: not mux.node._handover._offers, "the segments to be withdrawn")


@pytest.mark.spec("METR-1", "METR-3")
def test_along_a_chain_the_strictest_rate_holds() -> None:
    engine = EngineConfig(classes=("critical", "metered"), keeps="wanted", has_upstream=True)
    with node_here(plant_config(engine=ALL, metering=MeteringLimits(per_second_max=100))) as plant:
        mux = mux_config(plant.port, engine=engine, metering=MeteringLimits(per_second_max=5))
        with node_here(mux) as below, Consumer(below.port) as consumer:
            wait_until(lambda: below.node.status().is_fed, "the plant")
            plant.publish(packed("md.A.quote", quote("A", 0)))
            consumer.wait_live(consumer.attached().subscribe("md.>", cls="metered", per_second=50))
            sent = iter(range(1, 1_000_000))
            seen = len(consumer.sequence("md.A.quote"))

            def publish() -> bool:
                plant.publish(packed("md.A.quote", quote("A", next(sent))))
                return len(consumer.sequence("md.A.quote")) >= seen + 4

            wait_until(publish, "some updates")
            last = next(sent)
            plant.publish(packed("md.A.quote", quote("A", last)))
            numbers = consumer.wait_for("md.A.quote", last)  # the last one always comes
            assert len(numbers) <= 8
            updates = [each for each in consumer.events if each.kind == EventKind.UPDATE]
            assert {each.cls for each in updates} == {TransmissionClass.METERED}


@pytest.mark.spec("MDE-1")
def test_rules_of_classes_are_read_again(chain: tuple[NodeHere, NodeHere], tmp_path: Path) -> None:
    plant, mux = chain
    plant.publish(packed("md.A.quote", quote("A", 1)), packed("md.A.trade", trade("A", 1)))
    rules = tmp_path / "classes.toml"

    def classes(number: int) -> dict[str, int]:
        plant.publish(packed("md.A.quote", quote("A", number)), packed("md.A.trade", trade("A", number)))
        session.wait_for("md.A.quote", number)
        session.wait_for("md.A.trade", number)
        updates = [each for each in session.events if each.kind == EventKind.UPDATE]
        return {session.topics[each.item]: each.cls for each in updates}

    with Consumer(mux.port, "session", "session") as session:
        session.wait_live(session.attached().subscribe("md.>", cls="auto"))
        assert set(classes(2).values()) == {TransmissionClass.CRITICAL}
        rules.write_text("default = 'nonsense'\n")
        mux.node.reload_classes()  # refused, and nothing changes
        assert set(classes(3).values()) == {TransmissionClass.CRITICAL}
        rules.write_text('default = "adaptive"\n')
        mux.node.reload_classes()
        assert classes(4) == {
            "md.A.quote": TransmissionClass.ADAPTIVE,
            "md.A.trade": TransmissionClass.CRITICAL,  # never conflated
        }


@pytest.mark.spec("MUX-1")
def test_a_multiplexer_learns_models_from_the_node_above(tmp_path: Path) -> None:
    text = shipped("bar").text.replace('name = "bar"', 'name = "our_bar"').replace("id = 6", "id = 30999")
    own = MessageModel.parse(text)
    assert (own.name, own.id) == ("our_bar", 30_999)
    (tmp_path / "our_bar.toml").write_text(text)
    config = plant_config(models=(str(tmp_path / "our_bar.toml"),))
    with node_here(config) as plant, node_here(mux_config(plant.port)) as mux:
        wait_until(lambda: mux.node.status().is_fed, "the plant")
        with Consumer(mux.port, transport="session") as consumer:
            plant.publish(packed("md.A.bar", own.new(volume=1)))
            consumer.wait_live(consumer.attached().subscribe("md.>", cls="adaptive"))

            def comes_as_adaptive() -> bool:
                plant.publish(packed("md.A.bar", own.new(volume=1)))
                return any(each.cls == TransmissionClass.ADAPTIVE for each in consumer.of_kind(EventKind.UPDATE))

            wait_until(comes_as_adaptive, "the model to be known: unknown models are never conflated")
