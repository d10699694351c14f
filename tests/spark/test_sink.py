"""The sink `penstock`: rows become messages on topics."""

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, DecimalType, LongType, StringType, StructType

from admin_kit import config, credentials, credentials_file
from client_kit import Service, registered_on
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import ConfigurationError, NotEntitledError
from penstock.middleware import Deliver, DeliverBatch
from penstock.middleware.live import MulticastReceiver
from penstock.middleware.unicast import Contribute, Contributed, StreamOpened
from penstock.model import shipped
from penstock.net.udp import Channel, free_channel
from penstock.security.live.client import AdminClient
from penstock.spark.sink import PenstockStreamWriter, read_sink_options

TRADE = shipped("trade")
SCHEMA = StructType().add("topic", StringType()).add("symbol", StringType()).add("price", DecimalType(18, 8))
SCHEMA = SCHEMA.add("trade_id", LongType())


def rows(count: int, topic: str = "derived.desk.t") -> pa.RecordBatch:
    from decimal import Decimal

    return pa.RecordBatch.from_pydict(
        {
            "topic": [topic] * count,
            "symbol": [f"S{number}" for number in range(count)],
            "price": [Decimal(number) for number in range(count)],
            "trade_id": [-1 - number for number in range(count)],
        }
    )


class Listener:
    """Reads all messages on a channel until it is stopped."""

    def __init__(self, channel: Channel) -> None:
        self.messages: list[Any] = []
        self._receiver = MulticastReceiver([channel])
        self._is_over = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            for each in self._receiver.receive(0.05):
                if isinstance(each, Deliver | DeliverBatch):
                    self.messages += list(each.messages)

    def stop(self) -> list[Any]:
        self._is_over = True
        self._thread.join()
        self._receiver.close()
        return self.messages


@pytest.mark.spec("PIPE-8")
def test_a_frame_is_published(spark: Any) -> None:
    channel = free_channel()
    listener = Listener(channel)
    frame = spark.range(20).selectExpr(
        "concat('derived.', id) AS topic", "concat('S', id) AS symbol", "CAST(id AS DECIMAL(18,8)) AS price"
    )
    frame.write.format("penstock").mode("append").option("channel", str(channel)).option("model", "trade").save()
    messages = listener.stop()
    found = {message.topic: TRADE.view(message.payload, message.model_version) for message in messages}
    assert {topic: (trade.symbol, float(trade.price)) for topic, trade in found.items()} == {
        f"derived.{number}": (f"S{number}", float(number)) for number in range(20)
    }
    with pytest.raises(Exception, match="not a field of the messages"):
        frame.withColumn("colour", frame.topic).write.format("penstock").mode("append").option(
            "channel", str(channel)
        ).option("model", "trade").save()


@pytest.mark.spec("PIPE-8")
def test_a_query_publishes_with_its_entitlements_and_no_batch_twice(tmp_path: Path) -> None:
    """The writer as Spark calls it, with a real administration server; the adapter is a stand-in."""
    taken: list[Any] = []

    async def serve(connection: Any) -> None:
        await connection.receive()
        await connection.send(StreamOpened("adapter", 11, 1 << 14, [9]))
        async for said in connection:
            if isinstance(said, Contribute):
                taken.extend(said.messages[len(taken) + 1 - said.first_sequence :] if said.messages else [])
                await connection.send(Contributed(said.stream, len(taken) + 1))

    with (
        AdminServer(config(tmp_path)) as server,
        Service(serve) as adapter,
        AdminClient.connect(server.url, credentials("feed")) as feed,
    ):
        feed.register(registered_on(free_channel(), 11, service_port=adapter.port))
        options = {
            "connect": server.url,
            "credentials": str(credentials_file(tmp_path, "alice")),
            "stream": "desk",
            "topics": "derived.desk.>",
            "model": "trade",
            "progress": str(tmp_path / "progress"),
        }
        writer = PenstockStreamWriter(read_sink_options(options), SCHEMA)
        parts = [writer.write(iter([rows(3)])), writer.write(iter([rows(2), rows(1)])), None]
        writer.commit(parts, 0)
        assert [TRADE.view(each.payload).symbol for each in taken] == ["S0", "S1", "S2", "S0", "S1", "S0"]
        assert TRADE.view(taken[1].payload).trade_id == 2**64 - 2
        writer.commit(parts, 0)  # a restarted query commits its last batch again
        assert len(taken) == 6
        writer.commit(parts[:1], 1)
        assert len(taken) == 9
        writer.abort(parts, 2)
        with pytest.raises(NotEntitledError):
            writer.commit([writer.write(iter([rows(1, "derived.other.t")]))], 2)
        assert len(taken) == 9


@pytest.mark.parametrize(
    ("options", "schema", "text"),
    [
        ({"chanel": "239.1.1.1:7000"}, SCHEMA, "did you mean 'channel'"),
        ({}, SCHEMA, "no destination is given"),
        ({"connect": "penstock://h:1"}, SCHEMA, "are missing"),
        ({"channel": "239.1.1.1:7000"}, SCHEMA, "is not a field"),
        ({"channel": "x", "model": "trade"}, SCHEMA, "not a channel"),
        ({"channel": "239.1.1.1:7000"}, StructType().add("topic", StringType()), "no column 'payload'"),
        ({"channel": "239.1.1.1:7000"}, StructType().add("payload", BinaryType()), "no column 'topic'"),
    ],
)
def test_invalid_options_and_rows_are_refused(options: dict[str, str], schema: StructType, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        PenstockStreamWriter(read_sink_options(options), schema)
