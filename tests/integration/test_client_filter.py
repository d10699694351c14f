"""The client with a filter module: all properties that test_client.py checks hold here too."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from admin_kit import credentials, credentials_file
from client_kit import QUOTE, STREAM_ID, TERM, Originated, adapter_on, packets, registered_on
from integration.filter_kit import FilterHere, filter_here
from integration.test_client import *  # noqa: F403
from integration.test_client import A_ID, AAPL, IBM, drained, key_in_use, serving, take
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import RefusedError, RevokedError, UnreachableError
from penstock.client import Client, ClientConfig
from penstock.client.inbox import Inbox
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.middleware.unicast import ImageEnd, OpenStream, Packets, Position
from penstock.net.udp import free_channel, free_ports
from penstock.security import Sealer
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from penstock.wire import OriginFlag
from waiting import PATIENCE_SECONDS, wait_until


def test_what_is_not_granted_is_never_seen_whatever_comes(server: AdminServer, feed: AdminClient) -> None:
    """The filter passes on only requested messages: the client does not even receive the others."""
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    with penstock.connect(server.url, credentials=credentials("carol")) as carol:
        subscription = carol.subscribe("md.>")
        with adapter_on(channel, A_ID, feed) as publisher:
            publisher.publish_batch(Originated("md.us.eq.AAPL.trade", range(1, 6)))
            assert [each.seq for each in drained(subscription, publisher, AAPL, 6)] == [6]
        assert subscription.statistics().refused == 0


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[FilterHere]:
    with filter_here() as module:
        monkeypatch.setenv("PENSTOCK_FILTER", f"127.0.0.1:{module.port}")
        yield module


def test_the_filter_is_used_and_left_when_it_is_gone(
    module: FilterHere, server: AdminServer, feed: AdminClient
) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    config = ClientConfig(filter_wait_s=0.5)
    with penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice:
        subscription = alice.subscribe("md.us.eq.AAPL.>")
        assert module.application_names()[0].startswith("alice-")
        with adapter_on(channel, A_ID, feed) as publisher:
            publisher.publish_batch(Originated(AAPL, [1]))
            assert [each.seq for each in take(subscription, 1)] == [1]
            assert module.module.status().applications
            module.stop()
            (line,) = subscription._lines.values()
            wait_until(lambda: (subscription.next(0.01), line._filtered)[1] is None, "the loss of the filter")
            publisher.publish_batch(Originated(AAPL, [2, 3]))
            assert [each.seq for each in take(subscription, 2)] == [2, 3]


def test_a_filter_that_was_named_is_not_done_without(server: AdminServer, feed: AdminClient) -> None:
    feed.register(registered_on(free_channel(), A_ID))
    config = ClientConfig(filter=f"127.0.0.1:{free_ports(1)[0]}", filter_wait_s=0.3)
    with (
        penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice,
        pytest.raises(UnreachableError),
    ):
        alice.subscribe("md.us.eq.AAPL.>")
    config = ClientConfig(filter="none")
    with penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice:
        assert alice.subscribe("md.us.eq.AAPL.>").next(0.0) is None


@pytest.mark.spec("FILT-15", "FILT-16")
@pytest.mark.parametrize("through", ["filter", "none"])
def test_a_message_to_one_client_alone(module: FilterHere, server: AdminServer, through: str) -> None:
    channel = free_channel()
    place = f"127.0.0.1:{module.port}" if through == "filter" else "none"
    with AdminClient.connect(server.url, credentials("quill")) as early:
        early.claim_publisher("desk")  # so that the inboxes know it from the start
    with (
        penstock.connect(server.url, credentials=credentials("quill")) as quill,
        penstock.connect(server.url, credentials=credentials("alice"), config=ClientConfig(filter=place)) as alice,
        penstock.connect(server.url, credentials=credentials("bob"), config=ClientConfig(filter=place)) as bob,
        alice.inbox(channel) as hers,
        bob.inbox(channel) as his,
        quill.publisher(channel, name="desk", config=PublisherConfig(linger_ms=50)) as publisher,
    ):
        assert quill.admin.claim_publisher("desk").publisher_id == publisher.publisher_id
        publisher.publish(AAPL, b"to nobody in particular")
        publisher.send_to(alice.address, QUOTE.new(bid_size=5))
        publisher.send_to(bob.address, b"hello", topic="desk.greeting")
        message = hers.next(PATIENCE_SECONDS)
        assert (message.topic, message.bid_size) == ("", 5)
        message = his.next(PATIENCE_SECONDS)
        assert (message.topic, bytes(message.payload)) == ("desk.greeting", b"hello")
        assert (hers.next(0.05), his.next(0.05)) == (None, None)


@pytest.mark.spec("FILT-15", "AUTH-5")
def test_a_client_gets_no_messages_to_another_one_by_taking_its_address(
    server: AdminServer, feed: AdminClient, tmp_path: Path
) -> None:
    channel = free_channel()
    admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
    feed.register(registered_on(channel, A_ID))
    with filter_here(admin=admin) as entitled:
        config = ClientConfig(filter=f"127.0.0.1:{entitled.port}")
        with (
            penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice,
            penstock.connect(server.url, credentials=credentials("bob"), config=config) as bob,
            penstock.connect(server.url, credentials=credentials("quill")) as quill,
        ):
            for client in (alice, bob):
                client.subscribe("md.us.eq.AAPL.>")  # a token is shown to the filter
            own, bob.address = bob.address, alice.address
            with pytest.raises(RefusedError, match="is not an address of bob"):
                bob.inbox(channel)
            bob.address = own
            with (
                alice.inbox(channel) as hers,
                bob.inbox(channel) as his,
                quill.publisher(channel, name="desk", config=PublisherConfig(linger_ms=1)) as publisher,
            ):
                wait_until(lambda: _arrives(publisher, alice.address, hers, b"for alice"), "a message to alice")
                wait_until(lambda: _arrives(publisher, bob.address, his, b"for bob"), "a message to bob")


def _arrives(publisher: MulticastPublisher, address: int, inbox: Inbox, content: bytes) -> bool:
    """Messages of a publisher that the filter does not know yet are refused, so they are sent again."""
    publisher.send_to(address, content)
    message = inbox.next(0.2)
    assert message is None or bytes(message.payload) == content
    return message is not None


@pytest.mark.spec("ADM-7")
def test_a_filter_that_asks_for_tokens_gives_what_they_grant(
    server: AdminServer, feed: AdminClient, tmp_path: Path
) -> None:
    channel = free_channel()
    admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
    feed.register(registered_on(channel, A_ID, sealed=True))
    with filter_here(admin=admin) as entitled:
        config = ClientConfig(filter=f"127.0.0.1:{entitled.port}", filter_delivery="shared")
        with penstock.connect(server.url, credentials=credentials("alice"), config=config) as alice:
            subscription = alice.subscribe("md.us.eq.AAPL.>", where="bid_size > 1")
            sealer = Sealer(key_in_use(feed, subscription), A_ID, 1)
            with adapter_on(channel, A_ID, feed) as publisher:
                publisher.publish_batch(Originated(AAPL, [1, 2, 3], sealer=sealer))
                assert [each.bid_size for each in take(subscription, 2)] == [2, 3]
                with AdminClient.connect(server.url, credentials("root")) as root:
                    root.revoke("alice", "left the firm")
                wait_until(lambda: not entitled.application_names(), "the filter to end it")
                with pytest.raises(RevokedError):
                    take(subscription, 1)


@pytest.mark.spec("SUB-5")
def test_what_is_not_ours_between_the_image_and_the_first_update_is_not_lost(feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    image = int(OriginFlag.SYNCHRONISED | OriginFlag.IMAGE)

    async def conduct(connection: Any, request: OpenStream) -> None:
        await connection.send(Packets(packets(AAPL, [5], publisher_id=A_ID, flags=image)))
        await connection.send(ImageEnd([Position(STREAM_ID, TERM, 5)]))

    with serving(conduct, []) as service, adapter_on(channel, A_ID, feed) as publisher:
        feed.register(registered_on(channel, A_ID, service_port=service.port))
        subscription = alice.subscribe("md.us.eq.AAPL.>", image=True)
        assert [each.seq for each in take(subscription, 1)] == [5]
        publisher.publish_batch(Originated(IBM, range(6, 20)))  # the stream begins only now
        publisher.publish_batch(Originated(AAPL, [20]))
        assert [each.seq for each in take(subscription, 1)] == [20]
        assert subscription.losses == []
        subscription.close()
