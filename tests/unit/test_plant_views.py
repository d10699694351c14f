"""Views that a ticker plant derives from its items."""

import pytest

from penstock.base.clock import SystemRandomness
from penstock.middleware import Receiver, ReceiverConfig, SessionEvent
from penstock.model import Message, MessageModel, shipped
from penstock.plant.core.views import Derived, Views
from penstock.wire import DatagramBatch, MessageBatch, Packer, PacketMessage

QUOTE, TRADE, BOOK = shipped("quote"), shipped("trade"), shipped("book_snapshot")


def views(*names: str) -> Views:
    return Views(names, seed=1, instruments_max=2, trades_max=100)  # type: ignore[arg-type]


def message(topic: str, content: Message) -> PacketMessage:
    return PacketMessage(topic, bytes(content), content.model.id, content.model.version)


def shown(derived: list[Derived], *fields: str) -> list[tuple[object, ...]]:
    return [(each.topic, *(getattr(each.model.view(each.record), name) for name in fields)) for each in derived]


def trade(price: str, quantity: int, trade_id: int, action: str = "trade") -> Message:
    return TRADE.new(symbol="A", price=price, quantity=quantity, trade_id=trade_id, action=action, event_time=trade_id)


@pytest.mark.spec("TP-1")
def test_spread_of_every_quote() -> None:
    quotes = [
        QUOTE.new(symbol="A", bid_price="10.5", ask_price="10.8", event_time=7, source_seq=9, update_count=3),
        QUOTE.new(symbol="A", bid_price="11", ask_price="10.5"),
        QUOTE.new(symbol="B", ask_price="1"),
    ]
    made = views("spread").derive([message(f"md.{each.symbol}", each) for each in quotes])
    assert [(name, str(spread), str(mid)) for name, spread, mid in shown(made, "spread", "mid")] == [
        ("md.A.view.spread", "0.3", "10.65"),
        ("md.A.view.spread", "-0.5", "10.75"),
        ("md.B.view.spread", "None", "None"),
    ]
    first = made[0].model.view(made[0].record)
    assert (first.symbol, first.event_time, first.source_seq, first.update_count) == ("A", 7, 9, 3)
    assert first.widest == first.spread
    assert first.receive_time is None


@pytest.mark.spec("TP-1")
def test_top_of_every_book() -> None:
    book = BOOK.new(symbol="A", bid_price_1="9.5", bid_size_1=100, bid_price_2="9")
    made = views("top").derive([message("md.A.book", book)])
    assert shown(made, "bid_size", "ask_price") == [("md.A.book.view.top", 100, None)]
    assert str(made[0].model.view(made[0].record).bid_price) == "9.5"


@pytest.mark.spec("TP-1")
def test_the_day_view_reverses_corrections_and_cancellations() -> None:
    day = views("day")
    trades = [trade("10", 5, 1), trade("12", 5, 2), trade("11", 1, 3)]
    (made,) = day.derive([message("md.A", each) for each in trades])
    record = made.model.view(made.record)
    assert (made.topic, record.volume, record.trade_count, str(record.high)) == ("md.A.view.day", 11, 3, "12.0")
    assert (str(record.open), str(record.last), str(record.turnover)) == ("10.0", "11.0", "121.0")
    changes = [trade("0", 0, 2, "cancel"), trade("10.5", 2, 3, "correct")]
    (made,) = day.derive([message("md.A", each) for each in changes])
    record = made.model.view(made.record)
    assert (record.volume, record.trade_count, str(record.high), str(record.last)) == (7, 2, "10.5", "10.5")


def test_views_beyond_the_limit_are_left_out() -> None:
    day = views("day")
    made = day.derive([message(f"md.{name}", trade("1", 1, 1)) for name in "ABC"])
    assert [each.topic for each in made] == ["md.A.view.day", "md.B.view.day"]


def batch_of(*messages: tuple[str, bytes, MessageModel]) -> MessageBatch:
    packer = Packer(1, 2, 1)
    packets = [*packer.add("begin", b""), packer.flush() or b""]
    packets += [each for topic, data, model in messages for each in packer.add(topic, data, model_id=model.id)]
    packets.append(packer.flush() or b"")
    receiver = Receiver(ReceiverConfig(), SystemRandomness())
    for part in (packets[:1], packets[1:]):  # the first message starts the stream
        datagrams = DatagramBatch(16)
        for packet in part:
            datagrams.append(packet, ("127.0.0.1", 9))
        found = receiver.in_order.begin(datagrams, 1)
        receiver.receive_rest(datagrams, found, 1)
    assert found is not None
    return found


def test_a_decoded_batch_gives_the_same_result_as_messages() -> None:
    quotes = [QUOTE.new(symbol="A", bid_price="1", ask_price=f"{n}") for n in range(2, 9)]
    others = [("x", b"other", TRADE), ("y", b"12345678", QUOTE)]
    one = views("spread").derive([message("md.A", each) for each in quotes])
    many = batch_of(*[("md.A", bytes(each), QUOTE) for each in quotes], *others)
    other = views("spread").derive(many)
    assert [(each.topic, bytes(each.record)) for each in one] == [(each.topic, bytes(each.record)) for each in other]
    assert len(one) == 7


@pytest.mark.spec("DAY-3")
def test_a_new_session_of_a_stream_resets_its_day_and_no_other_streams() -> None:
    sources = {b"md.A": (0, 1, 7), b"md.B": (0, 2, 8)}
    made = views("day")
    numbers = iter(range(1, 100))

    def volumes() -> list[tuple[object, ...]]:
        content = [message(topic, trade("10", 100, next(numbers))) for topic in ("md.A", "md.B")]
        return shown(made.derive(content, lambda topic, _: sources[topic]), "volume")

    made.change_session((0, 1), SessionEvent("running", 1, tag=7))
    made.change_session((0, 2), SessionEvent("running", 2, tag=8))
    volumes()
    assert volumes() == [("md.A.view.day", 200), ("md.B.view.day", 200)]
    for _ in range(2):  # several adapters may report it
        made.change_session((0, 1), SessionEvent("begin", 1, "day 2", tag=9))
    assert volumes() == [("md.A.view.day", 100), ("md.B.view.day", 300)]
    made.change_session((0, 2), SessionEvent("running", 2, tag=5))  # its begin was missed
    assert volumes() == [("md.A.view.day", 200), ("md.B.view.day", 100)]
    (derived,) = made.derive([message("md.A", trade("10", 1, 99))], lambda topic, _: sources[topic])
    assert derived.source == (0, 1, 7)


@pytest.mark.spec("TP-1", "DAY-9")
def test_views_of_fractional_quantities_are_exact() -> None:
    model = shipped("trade_8")
    trades = [
        model.new(symbol="B", price="61837.63", quantity=quantity, trade_id=number, action="trade", event_time=number)
        for number, quantity in enumerate(("0.0046", "0.00000001"), start=1)
    ]
    (last,) = views("day").derive([message("md.B.trade", each) for each in trades])
    assert last.model is shipped("day_statistics_8")
    record = last.model.view(last.record)
    assert (record.scaled("volume"), record.scaled("turnover")) == (460_001, 2_844_537)
    book = shipped("book_snapshot_8").new(symbol="B", bid_price_1="9.5", bid_size_1="0.0046")
    (top,) = views("top").derive([message("md.B.book", book)])
    assert top.model.view(top.record).scaled("bid_size") == 460_000
    quote = shipped("quote_8").new(symbol="B", bid_price="10.5", ask_price="10.8")
    assert shown(views("spread").derive([message("md.B", quote)]), "spread") == [("md.B.view.spread", 0.3)]
