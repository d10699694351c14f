"""Subscriptions to one model, against a real administration server and a stand-in of an adapter."""

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from admin_kit import credentials
from client_kit import Originated, adapter_on, registered_on
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import LocalProtocolError, ModelError
from penstock.client import Client, Subscription
from penstock.models import Quote, Trade
from penstock.net.udp import free_channel
from penstock.security.core.brokering import ModelReference
from penstock.security.live.client import AdminClient
from waiting import wait_until

AAPL = "md.us.eq.AAPL.quote"
SOLD = "md.us.eq.AAPL.trade"
A_ID = 11
MODELS = [ModelReference(id=kind.model.id, version=1, name=kind.model.name) for kind in (Quote, Trade)]


@pytest.fixture
def alice(server: AdminServer) -> Iterator[Client]:
    with penstock.connect(server.url, credentials=credentials("alice")) as client:
        yield client


def taken(subscription: Subscription[Any], count: int) -> list[Any]:
    got: list[Any] = []

    def have_come() -> bool:
        if (message := subscription.next(0.05)) is not None:
            got.append(message)
        return len(got) >= count

    wait_until(have_come, f"{count} messages")
    return got


@pytest.mark.spec("TOOL-8")
def test_messages_are_of_the_class_and_others_are_counted(
    server: AdminServer, feed: AdminClient, alice: Client
) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID, models=MODELS))
    every, quotes, trades = (
        alice.subscribe("md.us.eq.AAPL.>", model=model)
        for model in (None, Quote, Trade)  # type: ignore[call-overload]
    )
    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, [1]))
        publisher.publish_batch(Originated(SOLD, [2], model=Trade.model, quantity=7))
        publisher.publish_batch(Originated(AAPL, [3, 4]))
        publisher.publish_batch(Originated(SOLD, [5], model=Trade.model, quantity=9))
        assert [message.seq for message in taken(every, 5)] == [1, 2, 3, 4, 5]
        got = taken(quotes, 3)
        assert [(type(quote), quote.seq, quote.bid_size) for quote in got] == [(Quote, n, n) for n in (1, 3, 4)]
        assert [(type(trade), trade.seq, trade.quantity) for trade in taken(trades, 2)] == [
            (Trade, 2, 7),
            (Trade, 5, 9),
        ]
        assert trades.statistics().other_models == 3
        wait_until(lambda: quotes.next(0.01) or quotes.statistics().other_models == 2, "the last trade")
        assert quotes.statistics().messages == 3


@pytest.mark.spec("TOOL-8")
def test_batches_have_messages_of_the_class_only(server: AdminServer, feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID, models=MODELS))
    subscription = alice.subscribe("md.us.eq.AAPL.>", model=Trade)
    with adapter_on(channel, A_ID, feed) as publisher:
        for first in range(1, 30, 3):
            publisher.publish_batch(Originated(AAPL, [first, first + 1]))
            publisher.publish_batch(Originated(SOLD, [first + 2], model=Trade.model, quantity=first))
        trades: list[Trade] = []
        for batch in subscription.batches(timeout=60):
            assert list(batch.records) == [Trade.model]
            trades += batch
            assert len(batch.records[Trade.model]) == len(batch)
            if len(trades) == 10:
                break
    assert [trade.quantity for trade in trades] == list(range(1, 30, 3))
    assert all(type(trade) is Trade for trade in trades)
    assert subscription.statistics().other_models == 20


def test_a_model_that_cannot_come_is_refused(server: AdminServer, feed: AdminClient, alice: Client) -> None:
    feed.register(registered_on(free_channel(), A_ID))
    with pytest.raises(ModelError, match=r"no message on these topics is a trade \(model 2\)") as caught:
        alice.subscribe("md.us.eq.>", model=Trade)
    assert "quote" in str(caught.value)
    with pytest.raises(LocalProtocolError, match="not a class of messages"):
        alice.subscribe("md.us.eq.>", model=Quote.model)  # type: ignore[call-overload]
    with pytest.raises(LocalProtocolError, match="node or agent"):
        alice.subscribe("md.us.eq.>", node="auto", model=Quote)  # type: ignore[call-overload]
    with alice.subscribe("md.us.eq.>", model=Quote) as subscription:
        assert alice.admin.credentials.client == "alice"
        assert not subscription.is_over
