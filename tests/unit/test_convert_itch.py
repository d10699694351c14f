"""The shipped ITCH table on real and generated messages."""

from collections import Counter
from datetime import date
from typing import Any

import pytest

from penstock.convert import Converted, Converter, ConverterTable, SourceBatch
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.model import Message, shipped, shipped_names
from penstock.wire import Origin, OriginFlag
from unit.itch_messages import add, directory, executed, executed_at, head, number, trade

MODELS = {shipped(name).id: shipped(name) for name in shipped_names()}
DAY = date(2019, 1, 30)
MIDNIGHT_NS = 1_548_824_400_000_000_000  # in New York
PLAN = ConverterTable.load("itch").compile()


def new_converter(**options: Any) -> Converter:
    return Converter(PLAN, 7, trading_date=DAY, **options)


def read(converted: Converted) -> list[tuple[str, Origin, Message]]:
    return [(topic, origin, MODELS[model].view(record)) for topic, origin, model, record in converted]


def convert(*messages: bytes, converter: Converter | None = None) -> list[tuple[str, Origin, Message]]:
    used = converter or new_converter()
    return read(used.convert(SourceBatch.from_messages(list(messages), used.next_source_sequence or 1)))


def test_an_order_becomes_a_book_event_and_a_quote() -> None:
    first, second = convert(directory(), add(11, b"B", 300, 1_632_200))
    topic, origin, event = first
    assert topic == "md.us.eq.AAPL.book"
    assert origin == Origin(7, 0, 0, 0, 2, 1)
    assert (event.symbol, event.venue, event.order_id, event.quantity) == ("AAPL", "XNAS", 11, 300)
    assert (event.action, event.side, event.flags) == ("add", "buy", {"last_in_event"})
    assert event.scaled("price") == 163_22000000
    assert event.event_time == MIDNIGHT_NS + 34_200_000_000_000
    assert event.source_seq == 2
    assert event.receive_time is None
    assert event.new_order_id is None
    topic, origin, quote = second
    assert topic == "md.us.eq.AAPL.quote"
    assert origin == Origin(7, 0, 1, 0, 2, 2)
    assert (quote.scaled("bid_price"), quote.bid_size, quote.bid_orders) == (163_22000000, 300, 1)
    assert (quote.ask_price, quote.ask_size, quote.ask_orders) == (None, 0, None)


def test_a_change_below_the_best_price_gives_no_quote() -> None:
    made = convert(directory(), add(11, b"S", 300, 1_632_200), add(12, b"S", 300, 1_632_300))
    assert [topic.rpartition(".")[2] for topic, _, _ in made] == ["book", "quote", "book"]


@pytest.mark.spec("FEED-4")
def test_an_execution_gives_four_messages_and_the_statistics() -> None:
    converter = new_converter()
    convert(directory(), add(11, b"S", 300, 1_632_200), converter=converter)
    made = convert(executed(11, 100, 901), executed_at(11, 50, 902, b"N", 1_632_100), converter=converter)
    assert [topic.rpartition(".")[2] for topic, _, _ in made] == [
        "book", "trade", "stats", "quote", "book", "trade", "quote",
    ]  # fmt: skip
    assert [origin.message_index for _, origin, _ in made] == [0, 1, 2, 3, 0, 1, 2]
    assert [origin.message_sequence for _, origin, _ in made] == list(range(3, 10))
    _, trade_made, stats = (message for _, _, message in made[:3])
    assert (trade_made.quantity, trade_made.aggressor, trade_made.trade_id) == (100, "buy", 901)
    assert (stats.volume, stats.trade_count) == (100, 1)
    assert stats.scaled("open") == stats.scaled("last") == 163_22000000
    hidden = made[5][2]
    assert hidden.conditions == {"not_volume", "not_last", "not_high_low"}
    assert converter.state.statistics("AAPL").volume == 100


@pytest.mark.spec("FEED-9")
def test_a_broken_trade_is_reversed() -> None:
    converter = new_converter()
    convert(directory(), trade(100, 1_600_000, 1), trade(200, 1_700_000, 2), converter=converter)
    assert converter.state.statistics("AAPL").high == 170_00000000
    (_, _, cancel), (_, _, stats) = convert(head(b"B") + number(2, 8), converter=converter)
    assert (cancel.action, cancel.trade_id, cancel.quantity) == ("cancel", 2, 200)
    assert (stats.volume, stats.trade_count) == (100, 1)
    assert stats.scaled("high") == stats.scaled("last") == 160_00000000
    assert convert(head(b"B") + number(2, 8), converter=converter) == []
    assert converter.counters.by_cause("source_messages_unmatched") == {"unknown_trade": 1}


@pytest.mark.spec("FEED-9")
def test_halts_and_a_new_session() -> None:
    converter = new_converter()
    halt = head(b"H") + b"AAPL    " + b"H" + b" " + b"T1  "
    resumption = head(b"H") + b"AAPL    " + b"T" + b" " + b"    "
    (topic, _, halted), (_, _, resumed) = convert(halt, resumption, converter=converter)
    assert topic == "md.us.eq.AAPL.status"
    assert (halted.state, halted.reason) == ("halted", "T1")
    assert (resumed.state, resumed.reason) == ("trading", None)
    convert(add(11, b"B", 300, 1_632_200), trade(100, 1_600_000, 1), converter=converter)
    number_before = converter.next_message_sequence
    converter.new_session("0000000002", date(2019, 1, 31))
    assert converter.next_source_sequence == 0
    assert converter.next_message_sequence == number_before
    assert converter.state.order_count == 0
    assert converter.state.statistics("AAPL").previous_close == 160_00000000
    ((_, origin, event), _) = convert(add(11, b"B", 300, 1_632_200), converter=converter)
    assert origin.source_sequence == 1
    assert event.event_time == MIDNIGHT_NS + 24 * 3_600_000_000_000 + 34_200_000_000_000


@pytest.mark.spec("FEED-10")
def test_locate_codes_are_learned_from_any_message_with_a_symbol() -> None:
    converter = new_converter()
    made = convert(add(1, b"B", 100, 1_000_000, locate=513, stock=b"BRK.A"), executed(1, 100, 5), converter=converter)
    assert {topic for topic, _, _ in made} == {f"md.us.eq.BRK:A.{kind}" for kind in ("book", "quote", "trade", "stats")}
    assert {message.symbol for _, _, message in made} == {"BRK.A"}
    convert(directory(514, b"MSFT", lot=10), converter=converter)
    assert converter.state.reference(converter.state.find("MSFT")).round_lot == 10
    assert converter.state.find_locate(514) == converter.state.find("MSFT")


def test_the_generated_day_converts_without_an_error() -> None:
    generator = ItchGenerator(GeneratorConfig(seed=3, symbols=50, messages=20_000))
    converter = new_converter()
    taken = made = 0
    while len(batch := generator.take()):
        taken += len(batch)
        made += len(converter.convert(batch))
    counters = converter.counters
    assert counters["source_messages"] == taken
    assert counters["messages_converted"] == made == converter.next_message_sequence - 1
    assert counters["source_messages_malformed"] == counters["source_messages_unmatched"] == 0


@pytest.mark.spec("FEED-2")
def test_the_result_is_the_same_for_any_batch_sizes() -> None:
    messages = list(ItchGenerator(GeneratorConfig(seed=5, symbols=20, messages=3_000)))
    whole = new_converter(checkpoint_interval=100)
    everything = list(whole.convert(SourceBatch.from_messages(messages, 1)))
    single = new_converter(checkpoint_interval=100)
    one_by_one = []
    for index, message in enumerate(messages):
        one_by_one += list(single.convert(SourceBatch.from_messages([message], index + 1)))
    assert one_by_one == everything
    assert single.take_checkpoints() == whole.take_checkpoints()
    assert single.checkpoint_now() == whole.checkpoint_now()
    assert single.state.digest == whole.state.digest


def test_an_image_contains_everything_for_a_late_subscriber() -> None:
    converter = new_converter()
    convert(
        directory(),
        add(1, b"B", 100, 1_000_000),
        add(2, b"B", 50, 999_900),
        trade(10, 1_000_100, 3),
        converter=converter,
    )
    image = read(converter.image())
    assert [topic.rpartition(".")[2] for topic, _, _ in image] == ["quote", "stats", "snapshot"]
    assert {(origin.flags, origin.message_sequence, origin.source_sequence) for _, origin, _ in image} == {
        (OriginFlag.IMAGE, 5, 4)
    }
    snapshot = image[-1][2]
    assert (snapshot.bid_size_1, snapshot.bid_size_2, snapshot.bid_price_3) == (100, 50, None)
    assert [topic for topic, _, _ in read(converter.image(lambda topic: topic.endswith(".stats")))] == [
        "md.us.eq.AAPL.stats"
    ]
    assert converter.flags == 0
    assert converter.next_message_sequence == 6


def test_topics_are_correct_after_the_state_was_loaded_from_an_image() -> None:
    donor, heir = new_converter(), new_converter()
    convert(directory(5, b"MSFT"), add(1, b"B", 100, 1_000_000, 5, b"MSFT"), converter=donor)
    convert(directory(), add(1, b"B", 100, 1_000_000), converter=heir)
    image = donor.state.begin_image()
    chunks = []
    while chunk := image.chunk(65_536):
        chunks.append(chunk)
    heir.state.install(chunks)
    heir.skip_to(donor.next_source_sequence)
    heir.next_message_sequence = donor.next_message_sequence
    assert convert(executed(1, 100, 5), converter=heir) == convert(executed(1, 100, 5), converter=donor)


def test_malformed_messages_have_no_effect() -> None:
    converter = new_converter()
    good = add(1, b"B", 100, 1_000_000)
    made = convert(directory(), good, b"?unknown", b"", good[:-1], add(2, b"X", 5, 5), converter=converter)
    assert Counter(topic.rpartition(".")[2] for topic, _, _ in made) == {"book": 1, "quote": 1}
    assert converter.counters.by_cause("source_messages_malformed") == {"kind": 2, "length": 1, "enumeration": 1}
    assert converter.next_source_sequence == 7
