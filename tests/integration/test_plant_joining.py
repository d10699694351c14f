"""Late subscribers and adapters in a plant of real processes; and contributions of subscribers."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from client_kit import QUOTE
from integration.plant_kit import DERIVED_STREAM, EXCHANGE, MARKET, PlantOptions, Reader, TestPlant
from penstock.base.errors import NotEntitledError
from penstock.client import Contributor
from penstock.middleware import Discontinuity


@pytest.mark.spec("SUB-5")
def test_a_late_subscriber_has_the_same_picture_as_an_early_one(tmp_path: Path) -> None:
    with TestPlant(tmp_path, PlantOptions(rate=4_000)) as plant:
        plant.start(players=False)
        client = plant.connect("alice")
        early = plant.read(client.subscribe(MARKET))
        plant.start_exchange()
        plant.until(lambda: early.last() > 8_000, "thousands of messages")
        late = [plant.read(client.subscribe(MARKET, image=True, transport=each)) for each in ("multicast", "tcp")]
        joined = [len(early.messages)]
        plant.until(lambda: all(each.last() > early.messages[joined[0] - 1].seq + 2_000 for each in late), "updates")
        plant.settle(early, *late)
        early.check_complete(first=1)
        for each in late:
            image, updates = split(each)
            position = image[0].seq
            assert [update.seq for update in updates] == list(range(position + 1, early.last() + 1))
            assert picture(image) == picture(message for message in early.messages if message.seq <= position)
            assert picture(each.messages) == picture(early.messages)


def split(reader: Reader) -> tuple[list[Any], list[Any]]:
    """The messages of the image, which have one number, and the messages after the image."""
    first = reader.messages[0].seq
    image = [each for each in reader.messages if each.seq == first]
    return image, reader.messages[len(image) :]


KNOWN = {
    "quote": ("bid_price", "bid_size", "bid_orders", "ask_price", "ask_size", "ask_orders"),
    "stats": ("open", "high", "low", "last", "volume", "turnover", "trade_count"),
    "status": ("state", "reason", "restrictions"),
}


def picture(messages: Iterable[Any]) -> dict[str, tuple[Any, ...]]:
    """The final state of each instrument: best prices, day and state. A book without orders is omitted."""
    known: dict[str, tuple[Any, ...]] = {}
    for each in messages:
        fields = KNOWN.get(each.topic.rpartition(".")[2], ())
        if fields:
            known[each.topic] = tuple(getattr(each, name) for name in fields)
    return {topic: values for topic, values in known.items() if any(values)}


@pytest.mark.spec("SUB-3", "SUB-4", "SYNC-7")
def test_what_a_client_contributes_comes_to_others_once_whoever_dies(tmp_path: Path) -> None:
    with TestPlant(tmp_path, PlantOptions()) as plant:
        plant.start()
        plant.until_pair()
        reader = plant.read(plant.connect("bob").subscribe("derived.>"))
        contributor = plant.connect("alice").contribute("desk", "derived.desk.>")
        with pytest.raises(NotEntitledError):
            contributor.send("derived.other.mid", QUOTE.new())
        send(contributor, range(1, 201))
        assert contributor.flush(30)
        plant.until(lambda: len(reader.messages) == 200, "the first half")
        plant.until_pair()
        plant.kill(plant.active().name, restart=True)
        send(contributor, range(201, 401))
        plant.until(lambda: len(reader.messages) >= 400, "the second half")
        plant.until_pair()
        send(contributor, range(401, 501))
        assert contributor.flush(30)
        plant.until(lambda: len(reader.messages) >= 500, "the messages after the return")
        assert [each.bid_size for each in reader.messages] == list(range(1, 501))
        assert {each.topic for each in reader.messages} == {"derived.desk.mid"}
        reader.check_complete(DERIVED_STREAM, first=1)
        assert reader.subscription.statistics().duplicates >= 400


def send(contributor: Contributor, numbers: range) -> None:
    for number in numbers:
        contributor.send("derived.desk.mid", QUOTE.new(bid_size=number))


@pytest.mark.spec("SYNC-9", "SYNC-7")
def test_an_adapter_that_comes_late_in_a_long_day_can_take_over(tmp_path: Path, soak: bool) -> None:
    before, after = (300_000, 50_000) if soak else (100_000, 20_000)
    with TestPlant(tmp_path, PlantOptions(rate=30_000, symbols=200)) as plant:
        plant.start(players=False, without=("adapter-b",))
        tally = plant.tally(plant.connect("alice").subscribe(MARKET))
        plant.start_exchange()
        plant.until(lambda: plant.node(EXCHANGE).sent >= before, "a long day")
        term = plant.status("adapter-a").term
        plant.start_late("adapter-b")
        plant.until_pair()
        assert plant.status("adapter-a").term == term, "the active adapter was not disturbed"
        since = plant.status("adapter-b").streams[0].next_message_sequence
        plant.until(lambda: tally.count >= since, "the messages that only the first adapter had")
        plant.kill("adapter-a")
        sent = plant.node(EXCHANGE).sent
        plant.until(lambda: plant.node(EXCHANGE).sent > sent + after, "more of the day")
        last = plant.settle()
        plant.until(lambda: tally.count >= last or tally.subscription.statistics().lost, f"message {last}")
        assert (tally.count, tally.is_ordered) == (last, True), f"{tally.subscription.losses}"
        assert tally.subscription.statistics().lost == 0
        breaks = [each.reason for each in tally.subscription.losses if isinstance(each, Discontinuity)]
        assert set(breaks) <= {"start", "session"}, "the takeover is seamless"
