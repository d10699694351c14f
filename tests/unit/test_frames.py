"""Messages as tables: Arrow, pandas and Polars."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy
import pandas
import polars
import pyarrow as pa
import pytest

from penstock.base.errors import ConfigurationError, LocalProtocolError, ModelError
from penstock.capture.live.frames import CollectedFrames, batch_of_messages, frame_schema
from penstock.capture.live.reading import Models
from penstock.client.batch import Batch
from penstock.middleware import DatagramsReceived
from penstock.model import Message, MessageModel, shipped, shipped_names
from penstock.models import Quote, Trade
from penstock.wire import DatagramBatch, Extension, Origin, Packer, PacketMessage, encode_extensions, encode_origin
from unit.middleware_kit import GROUP, SOURCE, packets, receiver

TIME_NS = 1_700_000_000_123_456_789
OLDER = 'id = 900\nname = "sample"\nversion = 1\n[[field]]\nname = "a"\ntype = "i64"\n'
NEWER = OLDER.replace("version = 1", "version = 2") + (
    '[[field]]\nname = "b"\ntype = "price"\ndecimals = 2\nsince = 2\noptional = true\n'
)
PRICES = [0, 1, -1, 12_345_678_901, 2**53, 2**53 + 1, -(2**53) - 3, 2**62 + 12_345, 2**63 - 1]
"""Prices as integers of 10**-8."""


def made(message: Message, topic: str, seq: int | None) -> Message:
    message.topic, message.seq = topic, seq
    return message


def quotes(count: int) -> list[Message]:
    return [
        made(Quote(symbol="AAPL", bid_price="187.25", bid_size=n, event_time=TIME_NS), f"md.{n}", n)
        for n in range(1, count + 1)
    ]


def test_columns_are_topic_number_and_fields_with_their_types() -> None:
    table = batch_of_messages(quotes(2), Quote.model, "decimal")
    assert table.schema.names == ["topic", "seq", *Quote.model.fields_by_name]
    assert table["topic"].to_pylist() == ["md.1", "md.2"]
    assert table["seq"].to_pylist() == [1, 2]
    assert table.schema.field("seq").type == pa.uint64()
    assert table["bid_price"].to_pylist() == [Decimal("187.25")] * 2
    assert table["ask_price"].to_pylist() == [None, None]
    assert table.schema.field("event_time").type == pa.timestamp("ns", tz="UTC")
    assert table["event_time"].cast("int64").to_pylist() == [TIME_NS] * 2
    assert table.schema == frame_schema(Quote.model, "decimal")


def test_float_prices_are_those_that_messages_read() -> None:
    messages = []
    for scaled in PRICES:
        data = bytearray(Quote())
        place = Quote.model.fields_by_name["bid_price"].offset
        data[place : place + 8] = scaled.to_bytes(8, "little", signed=True)
        messages.append(Quote.model.view(data))
    table = batch_of_messages(messages, Quote.model, "float")
    assert table.schema.field("bid_price").type == pa.float64()
    assert table["bid_price"].to_pylist() == [message.bid_price for message in messages]
    assert table["ask_price"].null_count == len(messages)
    assert table["seq"].null_count == len(messages)
    with pytest.raises(ModelError, match="prices cannot be 'text'"):
        batch_of_messages(messages, Quote.model, "text")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", shipped_names())
@pytest.mark.parametrize("prices", ["decimal", "float"])
def test_every_shipped_model_is_a_table(name: str, prices: Any) -> None:
    model = shipped(name)
    table = batch_of_messages([made(model.new(), "x", 1)], model, prices)
    assert table.num_rows == 1
    assert len(polars.DataFrame(table)) == 1
    assert len(table.to_pandas()) == 1


def test_older_and_newer_records_are_read_by_the_model() -> None:
    older, newer = MessageModel.parse(OLDER), MessageModel.parse(NEWER)
    mixed = [older.new(a=1), newer.new(a=2, b="1.5"), newer.view(bytes(older.new(a=3)), 1)]
    assert batch_of_messages(mixed, newer, "decimal")["b"].to_pylist() == [None, Decimal("1.50"), None]
    assert batch_of_messages(mixed, older, "decimal")["a"].to_pylist() == [1, 2, 3]


class Waiting(CollectedFrames):
    """Messages that a subscription would receive; None is a time without any."""

    def __init__(self, *messages: Any) -> None:
        self._messages: Iterator[Any] = iter(messages)
        self._is_over = False

    def next(self, timeout: float | None = None) -> Any:
        message = next(self._messages, self)
        self._is_over = message is self
        return None if message is self else message

    @property
    def is_over(self) -> bool:
        return self._is_over


def test_a_subscription_is_read_up_to_a_count_and_no_further() -> None:
    source = Waiting(*quotes(20_003))
    assert source.arrow(count=20_000)["seq"].to_pylist() == list(range(1, 20_001))
    assert source.next().seq == 20_001
    assert source.arrow(count=5)["seq"].to_pylist() == [20_002, 20_003]
    assert Waiting(*quotes(3)).arrow(count=0).num_rows == 0


def test_a_subscription_is_read_for_some_seconds() -> None:
    assert Waiting(None, *quotes(3), None).arrow(seconds=60).num_rows == 3
    assert Waiting(*quotes(3)).arrow(seconds=0).num_rows == 0
    with pytest.raises(LocalProtocolError, match="needs a bound"):
        Waiting().arrow()


def test_models_are_not_mixed() -> None:
    trade = made(Trade(price="1.5"), "md.t", 1)
    with pytest.raises(ModelError, match="of one model") as caught:
        Waiting(*quotes(1), trade).arrow(count=2)
    assert "quote, trade" in str(caught.value.hint)
    assert Waiting(trade, *quotes(1)).arrow(count=2, model=Quote)["topic"].to_pylist() == ["md.1"]
    assert Waiting(trade).arrow(count=2, model=Quote.model).schema == frame_schema(Quote.model, "decimal")
    assert Waiting().arrow(count=1).schema.names == ["topic", "seq"]


def test_pandas_and_polars_have_timestamps_and_the_chosen_prices() -> None:
    frame = Waiting(*quotes(2)).to_pandas(count=2)
    assert str(frame["event_time"].dtype) == "datetime64[ns, UTC]"
    assert frame["event_time"][0].value == TIME_NS
    assert frame["bid_price"].tolist() == [187.25, 187.25]
    assert Waiting(*quotes(1)).to_pandas(count=1, prices="decimal")["bid_price"].tolist() == [Decimal("187.25")]
    other = Waiting(*quotes(2)).to_polars(count=2)
    assert other.schema["event_time"] == polars.Datetime("ns", "UTC")
    assert other["bid_price"].to_list() == [Decimal("187.25")] * 2
    assert Waiting(*quotes(1)).to_polars(count=1, prices="float")["bid_price"].to_list() == [187.25]
    assert other["event_time"].dt.cast_time_unit("us").to_list()[0].replace(tzinfo=UTC) == datetime.fromtimestamp(
        TIME_NS // 10**9, UTC
    ).replace(microsecond=123_456)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for package, method in (("pandas", Waiting.to_pandas), ("polars", Waiting.to_polars)):
        monkeypatch.setitem(sys.modules, package, None)
        source = Waiting(*quotes(1))
        with pytest.raises(ConfigurationError, match=f"{package} is not installed") as caught:
            method(source, count=1)
        assert caught.value.hint == "pip install 'penstock[frames]'"
        assert source.next() is not None  # nothing was read


def test_a_batch_of_single_messages_is_a_table() -> None:
    models = Models(lambda model_id, version: shipped("quote"))
    packets = [PacketMessage(each.topic, bytes(each), 1, 1, sequence=n) for n, each in enumerate(quotes(2), 5)]
    packets.append(PacketMessage("md.t", bytes(Trade(price="2")), 2, 1))
    batch: Batch[Any] = Batch(packets, models)
    assert batch.arrow(Quote)["seq"].to_pylist() == [5, 6]
    assert batch.to_pandas(Trade)["price"].tolist() == [2.0]
    assert batch.to_polars(Trade.model)["price"].to_list() == [Decimal(2)]
    with pytest.raises(ModelError, match="of one model"):
        batch.arrow()
    assert isinstance(batch.to_pandas(Trade), pandas.DataFrame)


def test_a_batch_in_place_is_a_table_until_its_memory_is_used_again() -> None:
    origin = encode_extensions({int(Extension.ORIGIN): encode_origin(Origin(1, 1 << 14, 0, 0, 77, 77))})
    packer = Packer(42, GROUP, 1, first_sequence=2)
    made = []
    for kind, extensions in ((Quote, origin), (Trade, b""), (Quote, b""), (Quote, b"")):
        values: dict[str, Any] = {"bid_size": 5} if kind is Quote else {"price": "2.5"}
        packer.add(f"md.{len(made)}", kind(**values), model_id=kind.model.id, model_version=1, extensions=extensions)
        made.append(packer.flush() or b"")
    core, datagrams = receiver(), DatagramBatch(8)
    for each in (packets(1)[0], *made):
        datagrams.append(each, SOURCE)
    *_, delivered = core.handle(DatagramsReceived(datagrams), 0)
    models = Models(lambda model_id, version: shipped("quote" if model_id == 1 else "trade"))
    batch: Batch[Any] = Batch(delivered.messages.select(numpy.array([True, True, False, True])), models)
    assert batch.arrow(Quote).select(["topic", "seq", "bid_size"]).to_pylist() == [
        {"topic": "md.0", "seq": 77, "bid_size": 5},
        {"topic": "md.3", "seq": 5, "bid_size": 5},
    ]
    assert batch.arrow(Trade, prices="float").select(["topic", "seq", "price"]).to_pylist() == [
        {"topic": "md.1", "seq": 3, "price": 2.5}
    ]
    assert [message.seq for message in batch] == [77, 3, 5]
    assert "<td>md.3</td>" in batch._repr_html_()
    datagrams.clear()
    with pytest.raises(LocalProtocolError, match="no longer valid"):
        batch.arrow(Quote)
    assert "md.3" not in batch._repr_html_()
    assert "<td>5</td>" in batch._repr_html_()
    assert repr(batch) == "<Batch: 3 messages>"
