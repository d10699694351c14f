"""Ticker plant and multiplexer: images, updates, chains, refusals, and consumers of every kind."""

import itertools
import threading

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
from penstock.base.errors import ConnectionLostError, HandoverError, OverrunError, RefusedError
from penstock.engine import EngineConfig, EventKind, MeteringLimits, control, read_events
from penstock.model import shipped
from penstock.net.live.handover import receive_segment
from waiting import wait_until

SPREAD = shipped("spread")


@pytest.fixture
def plant():
    with node_here(plant_config(views=("spread",))) as made:
        yield made


@pytest.fixture
def mux(plant: NodeHere):
    with node_here(mux_config(plant.port)) as made:
        wait_until(made.node._source.upstream.link.attached.is_set, "the plant")
        yield made


@pytest.mark.spec("TP-2", "MUX-1", "CRIT-1")
@pytest.mark.parametrize("transport", ["local", "session"])
@pytest.mark.parametrize("where", ["plant", "mux"])
def test_image_then_every_update_while_updates_flow(
    plant: NodeHere, mux: NodeHere, where: str, transport: control.Transport
) -> None:
    numbers = itertools.count(1)
    is_over = threading.Event()

    def flow() -> None:
        while not is_over.wait(0.0005):
            number = next(numbers)
            plant.publish(packed("md.A.trade", trade("A", number)), packed("md.B.quote", quote("B", number)))

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        with Consumer((plant if where == "plant" else mux).port, transport=transport) as consumer:
            consumer.attached()
            consumer.wait_live(consumer.subscribe("md.A.>"))
            consumer.wait_live(consumer.subscribe("md.*.quote"))
            begun = next(numbers)
            wait_until(lambda: next(numbers) > begun + 200)
            is_over.set()
            flowing.join()
            last = next(numbers)
            plant.publish(packed("md.A.trade", trade("A", last)), packed("md.B.quote", quote("B", last)))
            for topic in ("md.A.trade", "md.B.quote"):
                seen = consumer.wait_for(topic, last)
                assert len(set(seen)) == len(seen), "repeated"
                versions = [
                    each.version
                    for each in consumer.events
                    if each.kind in (EventKind.REFRESH, EventKind.UPDATE) and consumer.topics[each.item] == topic
                ]
                assert versions == list(range(versions[0], versions[0] + len(versions))), "missed"
    finally:
        is_over.set()
        flowing.join()


@pytest.mark.spec("TP-1")
@pytest.mark.parametrize("where", ["plant", "mux"])
def test_snapshots_of_records_and_views(plant: NodeHere, mux: NodeHere, where: str) -> None:
    plant.publish(*(packed(f"md.S{n}.quote", quote(f"S{n}", n)) for n in range(3_000)))
    with Consumer((plant if where == "plant" else mux).port) as consumer:
        consumer.attached()
        blocks = consumer.run(consumer.link.snapshot(["md.*.quote", "md.S7.quote.view.spread"]))
        assert len(blocks) > 1
        events = [each for block in blocks for each in read_events(block)]
        topics = {each.item: each.topic.decode() for each in events if each.kind == EventKind.DEFINE}
        records = {topics[each.item]: each for each in events if each.kind == EventKind.REFRESH}
        assert len(records) == 3_001
        assert SPREAD.view(records["md.S7.quote.view.spread"].body).spread == 1
        assert not consumer.run(consumer.link.snapshot(["md.nothing"]))[0]


@pytest.mark.spec("MUX-1")
def test_the_first_wish_goes_upstream_and_the_last_one_releases(plant: NodeHere, mux: NodeHere) -> None:
    plant.publish(packed("md.A.quote", quote("A", 1)), packed("md.B.quote", quote("B", 1)))

    def upstream() -> tuple[int, int]:
        (record,) = plant.node.status().consumers
        return record.subscriptions, record.items

    with Consumer(mux.port, "one") as one, Consumer(mux.port, "two") as two:
        first = one.attached().subscribe("md.A.quote")
        one.wait_live(first)
        assert upstream() == (1, 1)
        second = two.attached().subscribe("md.A.quote")
        two.wait_live(second)  # from the cache
        assert upstream() == (1, 1)
        assert two.sequence("md.A.quote") == [1]
        assert [each.items for each in mux.node.status().consumers] == [1, 1]
        one.run(one.link.unsubscribe(first))
        plant.publish(packed("md.A.quote", quote("A", 2)))
        two.wait_for("md.A.quote", 2)
        assert upstream() == (1, 1)
        two.run(two.link.unsubscribe(second))
        wait_until(lambda: upstream() == (0, 0), "the release")
        # two topics of one request, released one after the other
        third = one.subscribe("md.A.quote", "md.B.quote")
        one.wait_live(third)
        fourth = two.subscribe("md.B.quote")
        two.wait_live(fourth)
        one.run(one.link.unsubscribe(third))
        wait_until(lambda: upstream() == (1, 1), "the release of a part")
        plant.publish(packed("md.B.quote", quote("B", 2)))
        two.wait_for("md.B.quote", 2)
    wait_until(lambda: upstream() == (0, 0), "the release")


@pytest.mark.spec("MDE-2", "MDE-4")
def test_the_operator_sees_each_consumer(mux: NodeHere, plant: NodeHere) -> None:
    plant.publish(packed("md.A.quote", quote("A", 1)))
    with Consumer(mux.port, "one") as one:
        one.wait_live(one.attached().subscribe("md.>"))
        assert one.welcomes[0].classes == ["critical", "adaptive"]
        (record,) = mux.node.status().consumers
        assert (record.name, record.destination) == ("one", "local.127.0.0.1")
        assert (record.subscriptions, record.topics, record.items) == (1, 1, 2)
        assert record.classes["critical"].sent >= 1
        text = mux.node.node.metrics.render().decode()
        assert 'penstock_consumer_items{consumer="one",node="mux",number="0"} 2.0' in text
        assert 'penstock_consumer_sent{class="critical",consumer="one",node="mux",number="0"}' in text
    wait_until(lambda: not mux.node.status().consumers, "the consumer to be forgotten")


def test_names_numbers_and_first_words_are_checked(plant: NodeHere) -> None:
    with Consumer(plant.port, "one") as one, Consumer(one.attached() and plant.port, "one") as other:
        wait_until(lambda: other.refusals, "the refusal")
        assert other.refusals[0].peer_code == "taken"
        number = one.subscribe("md.>")
        with pytest.raises(RefusedError) as refused:
            one.run(one.link.hold(control.Subscribe(number, ["x"])))
        assert refused.value.peer_code == "taken"
        for request, code in (
            (lambda n: control.Unsubscribe(n, 77), "subscription"),
            (lambda n: control.Subscribe(n, ["a..b"]), "topic"),
            (lambda n: control.Subscribe(n, ["!a"]), "topic"),
            (lambda n: control.AskModel(n, 60_000, 1), "model"),
        ):
            with pytest.raises(RefusedError) as refused:
                one.run(one.link.ask(request, control.Held))
            assert refused.value.peer_code == code
        assert one.link.attached.is_set()
        model = one.run(one.link.model(SPREAD.id, 1))
        assert 'name = "spread"' in model
        with pytest.raises(ConnectionLostError):
            one.run(one.link.vouch("x", "t"))  # it is no node
        wait_until(lambda: one.link.failure, "the end of a client that violates the protocol")


@pytest.mark.spec("METR-3")
@pytest.mark.parametrize(
    ("maximum", "wish", "granted"),
    [(0, 0, 0), (0, 4, 4), (0, 1e9, "rate"), (20, 0, "rate"), (20, 4, 4), (20, 1e9, "rate"), (20, 1_000, 20)],
)
def test_rates_are_limited_by_the_node(maximum: float, wish: float, granted: float | str) -> None:
    engine = EngineConfig(classes=("critical", "metered"))
    with (
        node_here(plant_config(engine=engine, metering=MeteringLimits(per_second_max=maximum))) as plant,
        Consumer(plant.port) as consumer,
    ):
        consumer.attached()
        assert consumer.welcomes[0].rate_max == maximum

        def request(number: int) -> control.Subscribe:
            return control.Subscribe(number, ["md.>"], "metered", wish)

        if isinstance(granted, str):
            with pytest.raises(RefusedError) as refused:
                consumer.run(consumer.link.ask(request, control.Held))
            assert refused.value.peer_code == granted
        else:
            held = consumer.run(consumer.link.ask(request, control.Held))
            assert held.per_second == granted


def test_more_topics_than_allowed_are_refused_and_others_do_not_notice() -> None:
    engine = EngineConfig(topics_per_consumer_max=3 * control.TOPICS_MAX)
    with (
        node_here(plant_config(engine=engine)) as plant,
        Consumer(plant.port, "greedy") as greedy,
        Consumer(plant.port, "modest") as modest,
    ):
        greedy.attached()
        modest.wait_live(modest.attached().subscribe("md.A.quote"))
        for part in range(3):
            greedy.subscribe(*(f"x.{part}.{number}" for number in range(control.TOPICS_MAX)))
        with pytest.raises(RefusedError) as caught:
            greedy.subscribe("x.one.more")
        assert caught.value.peer_code == "limit"
        plant.publish(packed("md.A.quote", quote("A", 5)))
        modest.wait_for("md.A.quote", 5)
        assert greedy.link.attached.is_set()


def test_nobody_gets_anothers_segment(plant: NodeHere) -> None:
    with Consumer(plant.port, "one") as one, Consumer(plant.port, "two") as two:
        one.attached()
        two.attached()
        mine, other = one.welcomes[0], two.welcomes[0]
        assert mine.ring != other.ring
        assert len(other.ring) == 32
        for guess in ("1", "ring", other.ring[:-1], other.ring[::-1]):
            with pytest.raises(HandoverError):
                receive_segment(mine.path, guess)
    wait_until(lambda: not plant.node._handover._offers, "the segments to be withdrawn")
    with pytest.raises(HandoverError):
        receive_segment(mine.path, mine.ring)


def read_after_overruns(slow: Consumer, last: int) -> tuple[list[int], int]:
    """The numbers of all trades up to the last one, and how often the consumer was overrun. The plant sends again at a
    pace, which a busy machine may not keep: the consumer may be overrun again."""
    overruns = 0
    while True:
        try:
            return slow.wait_for("md.A.trade", last), overruns
        except OverrunError:
            overruns += 1
        number = max(each.number for each in slow.events if each.kind == EventKind.UPDATE)
        slow.run(slow.link.overrun(number))
        assert slow.ring is not None
        slow.ring.restart()


@pytest.mark.spec("CRIT-4")
@pytest.mark.parametrize("history_bytes", [64 * 1024 * 1024, 65_536])
def test_a_consumer_that_was_overrun_gets_what_it_missed_or_a_receipt(history_bytes: int) -> None:
    engine = EngineConfig(classes=("critical",), history_bytes=history_bytes)
    with (
        node_here(plant_config(engine=engine, ring_bytes=1024 * 1024)) as plant,
        Consumer(plant.port, "slow") as slow,
        Consumer(plant.port, "session", "session") as other,
    ):
        for each in (slow, other):
            each.wait_live(each.attached().subscribe("md.>"))
        plant.publish(packed("md.A.trade", trade("A", 0)))
        slow.wait_for("md.A.trade", 0)
        last = 20_000
        for first in range(1, last, 500):
            plant.publish(*(packed("md.A.trade", trade("A", n)) for n in range(first, first + 500)))
        seen, overruns = read_after_overruns(slow, last)
        assert overruns
        if history_bytes > 1024 * 1024:  # more than the ring holds: it is sent again, at a pace
            assert seen == list(range(last + 1))
            assert not slow.of_kind(EventKind.RECEIPT)
        else:
            assert slow.of_kind(EventKind.RECEIPT)[-1].lost[1] >= last - 1
        assert other.wait_for("md.A.trade", last) == list(range(last + 1))  # nobody else noticed
        assert {each.name: each.overruns for each in plant.node.status().consumers} == {"slow": overruns, "session": 0}


@pytest.mark.spec("TP-1")
def test_a_snapshot_that_would_be_too_large_is_refused_not_cut_off() -> None:
    with node_here(plant_config(snapshot_items_max=3)) as plant, Consumer(plant.port) as consumer:
        consumer.attached()
        for count, is_refused in ((3, False), (4, True)):
            plant.publish(*(packed(f"md.S{number}.quote", quote("S", 1)) for number in range(count)))
            if not is_refused:
                assert consumer.run(consumer.link.snapshot(["md.>"]))[0]
                continue
            with pytest.raises(RefusedError) as refused:
                consumer.run(consumer.link.snapshot(["md.>"]))
            assert refused.value.peer_code == "limit"
