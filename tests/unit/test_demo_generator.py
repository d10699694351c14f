"""The generated quotes: the same for the same seed, and plausible for a venue."""

import numpy
import pytest

from penstock.base.errors import LocalProtocolError
from penstock.demo.generator import BLOCK_SIZE, PRICE_TICKS_MAX, PRICE_TICKS_MIN, QUOTE, TICK, TickGenerator
from penstock.demo.schedule import Schedule
from penstock.middleware import OutgoingBatch


def taken(seed: int, sizes: list[int], symbols: int = 20) -> tuple[bytes, list[str]]:
    """The bytes and topics of this many quotes, taken in batches of these sizes."""
    generator = TickGenerator(seed, symbols)
    batches = [generator.take(numpy.arange(size)) for size in sizes]
    payloads = b"".join(bytes(batch.payloads) for batch in batches)
    return payloads, [topic for batch in batches for topic in topics(batch)]


def topics(batch: OutgoingBatch) -> list[str]:
    rows = zip(batch.rows["topic_offset"].tolist(), batch.rows["topic_size"].tolist(), strict=True)
    return [batch.topic_data[at : at + size].decode() for at, size in rows]


def records(count: int, symbols: int = 20) -> "numpy.ndarray[tuple[int], numpy.dtype[numpy.void]]":
    generator = TickGenerator(3, symbols)
    sizes = [min(BLOCK_SIZE, count - at) for at in range(0, count, BLOCK_SIZE)]
    payloads = b"".join(bytes(generator.take(numpy.full(size, 7)).payloads) for size in sizes)
    return numpy.frombuffer(payloads, QUOTE.dtype)


def test_the_same_seed_makes_the_same_bytes() -> None:
    assert taken(1, [100, 200]) == taken(1, [100, 200])
    assert taken(1, [300]) != taken(2, [300])


def test_the_batch_size_changes_nothing() -> None:
    def but_times(sizes: list[int]) -> tuple[bytes, list[str]]:
        payloads, names = taken(1, sizes)
        quotes = numpy.frombuffer(bytearray(payloads), QUOTE.dtype)
        for name in ("event_time", "bid_time", "ask_time"):
            quotes[name] = 0
        return bytes(quotes.view(numpy.uint8)), names

    assert but_times([BLOCK_SIZE, BLOCK_SIZE]) == but_times([1, 700, BLOCK_SIZE, BLOCK_SIZE - 701])


def test_quotes_are_plausible() -> None:
    quotes = records(3 * BLOCK_SIZE)
    assert (quotes["bid_price"] < quotes["ask_price"]).all()
    assert (quotes["bid_size"] > 0).all()
    assert (quotes["ask_size"] > 0).all()
    assert (quotes["bid_price"] % TICK == 0).all()
    assert quotes["bid_price"].min() >= PRICE_TICKS_MIN * TICK
    assert quotes["bid_price"].max() <= PRICE_TICKS_MAX * TICK
    assert quotes["source_seq"].tolist() == list(range(1, len(quotes) + 1))
    assert (quotes["event_time"] == 7).all()
    one = QUOTE.view(quotes[0].tobytes())
    assert one.receive_time is None
    assert one.bid_orders is None
    assert one.venue == "XDEM"


def test_a_symbol_moves_in_small_steps_and_comes_in_bursts() -> None:
    quotes = records(4 * BLOCK_SIZE, symbols=5)
    for symbol in numpy.unique(quotes["symbol"]):
        prices = quotes["bid_price"][quotes["symbol"] == symbol]
        assert abs(numpy.diff(prices)).max() <= 2 * TICK
        assert len(numpy.unique(prices)) > 1
    repeated = numpy.count_nonzero(quotes["symbol"][1:] == quotes["symbol"][:-1])
    assert repeated > len(quotes) / 2


def test_the_topic_is_that_of_the_symbol() -> None:
    payloads, names = taken(1, [500])
    quotes = numpy.frombuffer(payloads, QUOTE.dtype)
    assert names == [f"md.demo.eq.{symbol.decode()}.quote" for symbol in quotes["symbol"].tolist()]


def test_a_schedule_assigns_every_message_its_time_once() -> None:
    schedule = Schedule(1_000_000, 1_000)
    times: list[int] = []
    while not schedule.is_over:
        times += schedule.due(64).tolist()
    assert len(times) == 1_000
    assert times == sorted(times)
    assert not len(schedule.due(64))


def test_at_most_one_block_can_be_taken_at_once() -> None:
    with pytest.raises(LocalProtocolError):
        TickGenerator(1, 1).take(numpy.zeros(BLOCK_SIZE + 1, numpy.int64))
