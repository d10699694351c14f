"""The client by way of a filter module: everything that test_client.py shows holds as well."""

from collections.abc import Iterator

import pytest

import penstock
from admin_kit import credentials
from client_kit import Originated, adapter_on, registered_on
from integration.filter_kit import FilterHere, filter_here
from integration.test_client import *  # noqa: F403
from integration.test_client import A_ID, AAPL, drained
from penstock.admin.driver import AdminServer
from penstock.net.udp import free_channel
from penstock.security.client import AdminClient


def test_what_is_not_granted_is_never_seen_whatever_comes(server: AdminServer, feed: AdminClient) -> None:
    """The filter passes on what was asked for only: the client does not even see the rest."""
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    with penstock.connect(server.url, credentials=credentials("carol")) as carol:
        subscription = carol.subscribe("md.>")
        with adapter_on(channel, A_ID) as publisher:
            publisher.publish_batch(Originated("md.us.eq.AAPL.trade", range(1, 6)))
            assert [each.seq for each in drained(subscription, publisher, AAPL, 6)] == [6]
        assert subscription.statistics().refused == 0


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[FilterHere]:
    with filter_here() as module:
        monkeypatch.setenv("PENSTOCK_FILTER", f"127.0.0.1:{module.port}")
        yield module
