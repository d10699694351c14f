"""Tables of subscriptions and batches, against a real administration server and a stand-in of an adapter."""

import io
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from rich.console import Console

import penstock
from admin_kit import RULES, config, credentials, policy_text
from client_kit import Originated, adapter_on, registered_on
from penstock.admin.live.driver import AdminServer
from penstock.client import Client
from penstock.middleware import PublisherConfig
from penstock.models import Quote
from penstock.net.udp import free_channel
from penstock.security.live.client import AdminClient

TOPICS = ("md.us.eq.AAPL.quote", "md.us.eq.IBM.quote")
A_ID = 11


def rich_text(shown: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def alice(server: AdminServer) -> Iterator[Client]:
    with penstock.connect(server.url, credentials=credentials("alice")) as client:
        yield client


def test_a_table_of_a_subscription_has_every_message_once(
    server: AdminServer, feed: AdminClient, alice: Client
) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.*.quote")
    with adapter_on(channel, A_ID, feed) as publisher:
        for first in range(1, 101, 10):
            publisher.publish_batch(Originated(TOPICS[first % 20 == 1], range(first, first + 10), bid_price="1.25"))
        table = subscription.arrow(seconds=120, count=95)
        rest = subscription.to_polars(seconds=120, count=5)
        shown = [rich_text(each) for each in (alice, subscription)]
        html = [each._repr_html_() for each in (alice, subscription)]
    assert repr(alice) == f"<Client alice of {server.url}>"
    assert repr(subscription) == "<Subscription to md.us.eq.*.quote>"
    for text in (shown[0], html[0]):
        assert "Client alice" in text
        assert "md.us.eq.*.quote" in text
    for text in (shown[1], html[1]):
        assert "100" in text
        assert "duplicates" in text
    subscription.cancel()
    assert repr(subscription) == "<Subscription to md.us.eq.*.quote (closed)>"
    assert "messages" in subscription._repr_html_()
    assert table["seq"].to_pylist() == list(range(1, 96))
    assert rest["seq"].to_list() == list(range(96, 101))
    assert table["topic"].to_pylist()[:20:10] == [TOPICS[1], TOPICS[0]]
    assert table["bid_size"].to_pylist() == list(range(1, 96))
    assert set(table["bid_price"].to_pylist()) == {Decimal("1.25")}
    assert subscription.statistics().messages == 100


def test_a_table_of_a_batch_has_topics_and_numbers(server: AdminServer, feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.*.quote", model=Quote)
    tables = []
    with adapter_on(channel, A_ID, feed) as publisher:
        for first in (1, 11, 21):
            publisher.publish_batch(Originated(TOPICS[first % 20 == 1], range(first, first + 10)))
        for batch in subscription.batches(timeout=120):
            tables.append(batch.arrow(prices="float"))
            assert batch.to_pandas()["seq"].tolist() == tables[-1]["seq"].to_pylist()
            if sum(table.num_rows for table in tables) == 30:
                break
            assert f"<td>{batch.arrow()['topic'][0]}</td>" in batch._repr_html_()
    table = pa.Table.from_batches(tables)
    assert table["seq"].to_pylist() == list(range(1, 31))
    assert table["topic"].to_pylist() == [TOPICS[1]] * 10 + [TOPICS[0]] * 10 + [TOPICS[1]] * 10
    assert table["bid_size"].to_pylist() == list(range(1, 31))


def test_messages_without_an_origin_have_the_numbers_of_their_packets(tmp_path: Path) -> None:
    rules = RULES.replace('receive = ["md.us.>"]', 'receive = ["md.us.>", "derived.>"]')
    (tmp_path / "policy.toml").write_text(policy_text(rules))
    with (
        AdminServer(config(tmp_path)) as server,
        penstock.connect(server.url, credentials=credentials("alice")) as alice,
        alice.publisher("derived.desk.>", config=PublisherConfig(linger_ms=1)) as publisher,
        alice.subscribe("derived.desk.>", model=Quote) as own,
    ):
        for size in range(1, 4):
            publisher.publish("derived.desk.mid", Quote(bid_size=size))
        table = own.arrow(seconds=120, count=3)
        publisher.publish("derived.desk.mid", Quote(bid_size=4))
        batch = next(own.batches(timeout=120))
        numbers = [*table["seq"].to_pylist(), *batch.arrow()["seq"].to_pylist()]
        assert [message.seq for message in batch] == batch.arrow()["seq"].to_pylist()
    assert table["bid_size"].to_pylist() == [1, 2, 3]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == len(numbers) >= 4
