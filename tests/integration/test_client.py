"""The client against a real administration server; adapters are stand-ins that send on real sockets."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import penstock
from admin_kit import config, confirm_keys, credentials, credentials_file
from client_kit import (
    QUOTE,
    STREAM_ID,
    TERM,
    Originated,
    Service,
    adapter_on,
    packets,
    registered_on,
)
from penstock.admin import AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import (
    AuthenticationError,
    FilterExpressionError,
    LocalProtocolError,
    NotEntitledError,
    RevokedError,
    TokenExpiredError,
    TopicError,
)
from penstock.client import Client, ClientConfig, Subscription, UnreadMessage
from penstock.middleware import Discontinuity
from penstock.middleware.live import MulticastPublisher
from penstock.middleware.unicast import (
    Contribute,
    Contributed,
    ImageBegin,
    ImageEnd,
    OpenStream,
    Packets,
    Position,
    StreamOpened,
    StreamRefused,
)
from penstock.model import MessageModel
from penstock.net.udp import free_channel
from penstock.security import Sealer, StreamKey
from penstock.security.core.brokering import BrokeredStream
from penstock.security.live.client import AdminClient
from penstock.wire import OriginFlag
from waiting import wait_until

AAPL = "md.us.eq.AAPL.quote"
IBM = "md.us.eq.IBM.quote"
A_ID, B_ID = 11, 12


@pytest.fixture
def alice(server: AdminServer) -> Iterator[Client]:
    with penstock.connect(server.url, credentials=credentials("alice")) as client:
        yield client


def key_in_use(feed: AdminClient, subscription: Subscription, *adapters: str) -> StreamKey:
    """Play the adapters of a sealed feed until a new subscription has begun; return the stream key with which it
    begins."""

    def has_begun() -> bool:
        confirm_keys(feed, *(adapters or ("adapter-0",)))
        assert subscription.next(0.01) is None
        return bool(subscription._lines)

    wait_until(has_begun, "the beginning of the subscription")
    return confirm_keys(feed, *(adapters or ("adapter-0",)))[-1]


def take(subscription: Subscription, count: int, seconds: float = 120) -> list[Any]:
    deadline = time.monotonic() + seconds
    taken: list[Any] = []
    while len(taken) < count:
        left = deadline - time.monotonic()
        assert left > 0, f"{len(taken)} of {count} messages came: {subscription.statistics()}"
        if (message := subscription.next(left)) is not None:
            taken.append(message)
    return taken


def drained(subscription: Subscription, publisher: MulticastPublisher, topic: str, number: int) -> list[Any]:
    """Publish message `number`, and return all messages up to it."""
    publisher.publish_batch(Originated(topic, [number]))
    taken: list[Any] = []
    while not taken or taken[-1].seq != number:
        taken += take(subscription, 1)
    return taken


@pytest.mark.spec("SUB-1", "SUB-4")
def test_messages_have_topic_number_source_and_fields(server: AdminServer, feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.AAPL.>")
    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(IBM, [1]))
        publisher.publish_batch(Originated(AAPL, [2, 3]))
        first, second = take(subscription, 2)
    assert (first.topic, first.seq, first.bid_size, first.model) == (AAPL, 2, 2, QUOTE)
    assert first.source.stream_id == STREAM_ID
    assert (second.seq, second.source.term) == (3, TERM)
    assert subscription.statistics().messages == 2
    subscription.cancel()
    assert list(subscription) == []


@pytest.mark.spec("SYNC-7", "SUB-2")
def test_two_adapters_are_one_stream_and_what_nobody_has_is_reported(feed: AdminClient, alice: Client) -> None:
    channels = [free_channel(), free_channel()]
    for index, channel in enumerate(channels):
        feed.register(registered_on(channel, A_ID + index, index))
    subscription = alice.subscribe(">")
    with adapter_on(channels[0], A_ID, feed) as a, adapter_on(channels[1], B_ID, feed) as b:
        for first in range(1, 101, 10):
            a.publish_batch(Originated(AAPL, range(first, first + 10)))
            b.publish_batch(Originated(AAPL, range(first, first + 10)))
        assert [each.seq for each in take(subscription, 100)] == list(range(1, 101))
    wait_until(lambda: subscription.next(0.01) is None and subscription.statistics().duplicates == 100)
    assert subscription.statistics().lost == 0
    assert subscription.losses == []


@pytest.mark.spec("SUB-1")
def test_batches_are_arrays_by_model(feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.>")
    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, range(1, 501)))
        sizes: list[int] = []
        for batch in subscription.batches(timeout=120):
            (model,) = batch.records
            assert [message.bid_size for message in batch] == batch.records[model]["bid_size"].tolist()
            assert batch.arrow().num_rows == len(batch)
            sizes += batch.records[QUOTE]["bid_size"].tolist()
            if len(sizes) == 500:
                break
    assert sizes == list(range(1, 501))


@pytest.mark.spec("SUB-1")
def test_the_same_in_an_asyncio_loop(feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.>")

    async def read() -> list[int]:
        numbers = []
        async for message in subscription:
            numbers.append(message.seq)
            if len(numbers) == 50:
                return numbers
        return numbers

    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, range(1, 51)))
        assert asyncio.run(asyncio.wait_for(read(), 120)) == list(range(1, 51))


@pytest.mark.spec("SUB-1")
def test_other_topics_from_now_on(feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.AAPL.>")
    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, [1]))
        take(subscription, 1)
        subscription.modify("md.us.eq.IBM.>")
        assert subscription.next(0.0) is None
        publisher.publish_batch(Originated(AAPL, [2]))
        assert [each.topic for each in drained(subscription, publisher, IBM, 3)] == [IBM]


def test_only_what_meets_the_condition(feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.>", where="bid_size >= 10 and bid_size < 13")
    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, range(1, 20)))
        assert [each.bid_size for each in take(subscription, 3)] == [10, 11, 12]
    with pytest.raises(FilterExpressionError, match="nonsense"):
        alice.subscribe("md.us.eq.>", where="nonsense > 3")


@pytest.mark.spec("SUB-4")
def test_what_is_not_granted_is_never_seen_whatever_comes(server: AdminServer, feed: AdminClient) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    with penstock.connect(server.url, credentials=credentials("carol")) as carol:
        subscription = carol.subscribe("md.>")
        with adapter_on(channel, A_ID, feed) as publisher:
            publisher.publish_batch(Originated("md.us.eq.AAPL.trade", range(1, 6)))
            assert [each.seq for each in drained(subscription, publisher, AAPL, 6)] == [6]
        assert subscription.statistics().refused == 5
        with pytest.raises(NotEntitledError):
            carol.subscribe("md.uk.>")


def test_mistakes_are_told_at_once(server: AdminServer, alice: Client, tmp_path: Path) -> None:
    with pytest.raises(LocalProtocolError):
        alice.subscribe()
    with pytest.raises(TopicError):
        alice.subscribe("md..x")
    with pytest.raises(AuthenticationError):
        penstock.connect(server.url, credentials=penstock_credentials_of("alice", b"not the secret of hers"))
    with penstock.connect(server.url, credentials=credentials_file(tmp_path, "bob")) as bob:
        assert bob.subscribe("md.us.eq.>").next(0.0) is None


def penstock_credentials_of(name: str, secret: bytes) -> Any:
    from penstock.security import Credentials

    return Credentials(name, secret=secret)


@pytest.mark.spec("ADM-5", "SUB-4")
def test_a_revoked_subscription_ends_and_says_why(server: AdminServer, feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.>")
    with AdminClient.connect(server.url, credentials("root")) as root, adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, [1]))
        take(subscription, 1)
        root.revoke("alice", "left the firm")
        wait_until(lambda: subscription.is_over, "the revocation")
        publisher.publish_batch(Originated(AAPL, [2]))
        with pytest.raises(RevokedError, match="left the firm"):
            take(subscription, 1)


@pytest.mark.spec("ADM-8")
def test_a_stopped_administration_server_disturbs_nothing_until_the_grants_are_over(tmp_path: Path) -> None:
    channel = free_channel()
    limits = AdminLimits(token_s=10, key_grace_s=0.0)
    with ExitStack() as stack:
        with AdminServer(config(tmp_path, limits=limits)) as server:
            with AdminClient.connect(server.url, credentials("feed")) as feed:
                feed.register(registered_on(channel, A_ID))
                publisher = stack.enter_context(adapter_on(channel, A_ID, feed))
            client = stack.enter_context(penstock.connect(server.url, credentials=credentials("alice")))
            subscription = client.subscribe("md.us.eq.>")
        publisher.publish_batch(Originated(AAPL, [1]))
        assert [each.seq for each in take(subscription, 1)] == [1]
        publisher.publish_batch(Originated(AAPL, range(2, 102)))
        assert [each.seq for each in take(subscription, 100)] == list(range(2, 102))
        with pytest.raises(TokenExpiredError, match="not renewed"):
            take(subscription, 1)
        assert time.time_ns() >= subscription.expires_ns


@pytest.mark.spec("ADM-8")
def test_grants_are_renewed_in_time(tmp_path: Path) -> None:
    limits = AdminLimits(token_s=5, session_s=5, key_grace_s=0.0)
    with (
        AdminServer(config(tmp_path, limits=limits)) as server,
        penstock.connect(server.url, credentials=credentials("alice")) as client,
    ):
        subscription = client.subscribe("md.us.eq.>")
        first = subscription.expires_ns

        def is_renewed() -> bool:
            assert subscription.next(0.01) is None
            return subscription.expires_ns > first + 4_000_000_000

        wait_until(is_renewed, "a renewal")


@pytest.mark.spec("ADM-8")
def test_after_a_takeover_a_client_asks_for_everything_anew(server: AdminServer, alice: Client) -> None:
    subscription = alice.subscribe("md.us.eq.>")
    first = subscription.expires_ns
    with AdminClient.connect(server.url, credentials("root")) as operator:
        operator.promote("the test says so")

    def is_renewed() -> bool:
        assert subscription.next(0.01) is None
        return subscription.expires_ns > first

    wait_until(is_renewed, "a renewal long before it is due")


@pytest.mark.spec("ADM-7", "SUB-4")
def test_sealed_messages_are_opened_with_the_keys_that_were_granted(server: AdminServer, feed: AdminClient) -> None:
    channel = free_channel()
    registered = feed.register(registered_on(channel, A_ID, sealed=True))
    with penstock.connect(server.url, credentials=credentials("alice")) as alice:
        subscription = alice.subscribe("md.us.eq.>", where="bid_size <> 2")
        sealer = Sealer(key_in_use(feed, subscription), A_ID, 1)
        with adapter_on(channel, A_ID, feed) as publisher:
            publisher.publish_batch(Originated(AAPL, [1, 2, 3], sealer=sealer))
            assert [each.bid_size for each in take(subscription, 2)] == [1, 3]
            forged = Originated(AAPL, [4, 5], sealer=sealer)
            forged.payloads = forged.payloads.copy()
            forged.payloads[int(forged.rows[0]["payload_offset"])] ^= 1
            publisher.publish_batch(forged)
            assert [each.bid_size for each in take(subscription, 1)] == [5]
            assert subscription.statistics().unreadable == 1
            publisher.publish_batch(Originated(AAPL, [6], sealer=Sealer(registered.keys[-1], A_ID, 1)))
            publisher.publish_batch(Originated(AAPL, [7], sealer=sealer))
            assert [each.bid_size for each in take(subscription, 1)] == [7]
            assert subscription.statistics().unreadable == 2, "an adapter seals with a key from before the subscription"


@pytest.mark.spec("ADM-7", "SUB-4")
def test_who_sends_into_a_sealed_stream_without_its_key_is_not_heard(server: AdminServer, feed: AdminClient) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID, sealed=True))
    feed.register(registered_on(channel, B_ID, index=1, sealed=True))
    with penstock.connect(server.url, credentials=credentials("alice")) as alice:
        subscription = alice.subscribe("md.us.eq.>")
        sealer = Sealer(key_in_use(feed, subscription, "adapter-0", "adapter-1"), A_ID, 1)
        with adapter_on(channel, A_ID, feed) as publisher, adapter_on(channel, B_ID, feed) as stranger:
            publisher.publish_batch(Originated(AAPL, [1], sealer=sealer))
            assert [each.seq for each in take(subscription, 1)] == [1]
            stranger.publish_batch(Originated(AAPL, [2, 3]))
            wait_until(lambda: subscription.next(0.01) is None and subscription.statistics().unreadable == 2)
            publisher.publish_batch(Originated(AAPL, [4], sealer=sealer))
            assert [each.seq for each in take(subscription, 1)] == [4]


@pytest.mark.spec("ADM-7")
def test_a_message_waits_for_its_key_and_what_follows_waits_with_it(server: AdminServer, feed: AdminClient) -> None:
    channel = free_channel()
    registered = feed.register(registered_on(channel, A_ID, sealed=True))
    with (
        AdminClient.connect(server.url, credentials("root")) as root,
        penstock.connect(server.url, credentials=credentials("alice")) as alice,
        penstock.connect(server.url, credentials=credentials("bob")) as bob,
        adapter_on(channel, A_ID, feed) as publisher,
    ):
        subscription = alice.subscribe("md.us.eq.>")
        bob.subscribe("md.us.eq.>")
        used = key_in_use(feed, subscription)
        root.revoke("bob", "of no more use")
        events = feed.events(registered.events_after).events
        *_, new = [key for each in events if hasattr(each.body, "keys") for key in each.body.keys]
        publisher.publish_batch(Originated(AAPL, [1], sealer=Sealer(new, A_ID, 1)))
        publisher.publish_batch(Originated(AAPL, [2], sealer=Sealer(used, A_ID, 1)))
        assert new.key_id > used.key_id
        assert [each.bid_size for each in take(subscription, 2)] == [1, 2]


def test_a_model_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    text = 'id = 900\nname = "spread"\nversion = 2\n[[field]]\nname = "width"\ntype = "i64"\n'
    text += '[[field]]\nname = "depth"\ntype = "i64"\nsince = 2\n'
    directory = tmp_path / "models"
    directory.mkdir()
    (directory / "spread.toml").write_text(text)
    model = MessageModel.parse(text)
    channel = free_channel()
    with (
        AdminServer(config(tmp_path, models=str(directory))) as server,
        AdminClient.connect(server.url, credentials("feed")) as feed,
        penstock.connect(server.url, credentials=credentials("alice")) as alice,
        adapter_on(channel, A_ID, feed) as publisher,
    ):
        feed.register(registered_on(channel, A_ID, models=[]))
        subscription = alice.subscribe("md.us.eq.>")
        publisher.publish_batch(Originated(AAPL, [1], model=model))
        (message,) = take(subscription, 1)
        assert message.model == model
        assert (message.width, message.depth) == (0, 0)
        stranger = MessageModel.parse(text.replace("900", "901"))
        publisher.publish_batch(Originated(AAPL, [2], model=stranger))
        (unread,) = take(subscription, 1)
        assert isinstance(unread, UnreadMessage)
        assert (unread.topic, unread.seq, unread.model, unread.model_id) == (AAPL, 2, None, 901)
        assert len(bytes(unread)) == stranger.record_size


def test_a_stream_that_moves_is_followed_without_a_loss(feed: AdminClient, alice: Client) -> None:
    old, new = free_channel(), free_channel()
    feed.register(registered_on(old, A_ID))
    subscription = alice.subscribe("md.us.eq.>")
    with adapter_on(old, A_ID, feed) as a, adapter_on(new, B_ID, feed) as b:
        a.publish_batch(Originated(AAPL, range(1, 11)))
        take(subscription, 10)
        feed.register(registered_on(new, B_ID, index=1))
        number = 10

        def is_followed() -> bool:
            nonlocal number
            number += 1
            for publisher in (a, b):
                publisher.publish_batch(Originated(AAPL, [number]))
            assert [each.seq for each in take(subscription, 1)] == [number]
            return subscription.statistics().duplicates > 0

        wait_until(is_followed, "the new adapter's stream")
        b.publish_batch(Originated(AAPL, [number + 1]))  # the old one is silent from here on
        assert [each.seq for each in take(subscription, 1)] == [number + 1]
    assert subscription.losses == []


@pytest.mark.spec("SUB-2", "SYNC-9")
def test_an_adapter_that_comes_while_messages_of_another_wait_to_be_read_costs_nothing(
    feed: AdminClient, alice: Client
) -> None:
    channels = [free_channel(), free_channel()]
    feed.register(registered_on(channels[0], A_ID))
    subscription = alice.subscribe("md.us.eq.AAPL.>")
    with adapter_on(channels[0], A_ID, feed) as first:
        numbers = drained(subscription, first, AAPL, 1)
        for number in range(2, 402):  # more datagrams than are read at once
            first.publish_batch(Originated(AAPL, [number]))
        feed.register(registered_on(channels[1], B_ID, index=1))
        (line,) = subscription._lines.values()
        wait_until(lambda: len(line._stream.addresses) == 2, "the client knows the second adapter")
        numbers += take(subscription, 1)  # hundreds of messages are yet to be read
        with adapter_on(channels[1], B_ID, feed) as second:
            for number in range(402, 412):
                first.publish_batch(Originated(AAPL, [number]))
                second.publish_batch(Originated(AAPL, [number]))
            numbers += drained(subscription, second, AAPL, 412)
    assert [each.seq for each in numbers] == list(range(1, 413))
    assert subscription.losses == []


@pytest.mark.spec("SUB-2", "SYNC-9")
def test_messages_of_an_adapter_that_left_are_read_to_the_end(feed: AdminClient, alice: Client) -> None:
    channels = [free_channel(), free_channel()]
    for index, (channel, publisher_id) in enumerate(zip(channels, (A_ID, B_ID), strict=True)):
        feed.register(registered_on(channel, publisher_id, index=index))
    subscription = alice.subscribe("md.us.eq.AAPL.>")
    with adapter_on(channels[0], A_ID, feed) as first, adapter_on(channels[1], B_ID, feed) as second:
        numbers = drained(subscription, first, AAPL, 1)
        for number in range(2, 402):
            first.publish_batch(Originated(AAPL, [number]))
        subscription.moved([left_by(subscription, A_ID)])
        numbers += drained(subscription, second, AAPL, 402)
    assert [each.seq for each in numbers] == list(range(1, 403))
    assert subscription.losses == []


def left_by(subscription: Subscription, publisher_id: int) -> BrokeredStream:
    """The subscription's stream without this adapter's address."""
    (stream,) = subscription._brokered.streams
    addresses = [each for each in stream.addresses if each.publisher_id != publisher_id]
    return msgspec.structs.replace(stream, addresses=addresses)


def test_a_discontinuity_and_a_gap_are_told(feed: AdminClient, alice: Client) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    subscription = alice.subscribe("md.us.eq.>")
    flags = int(OriginFlag.SYNCHRONISED | OriginFlag.DISCONTINUITY)
    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, [1]))
        publisher.publish_batch(Originated("penstock.discontinuity", [7], term=2 * TERM, flags=flags))
        publisher.publish_batch(Originated(AAPL, [8], term=2 * TERM))
        assert [each.seq for each in take(subscription, 2)] == [1, 8]
    (told,) = subscription.losses
    assert isinstance(told, Discontinuity)
    assert told.message_sequence == 7
    assert subscription.statistics().discontinuities == 1


def test_a_subscriber_that_comes_before_the_adapters_gets_their_streams_when_they_come(
    feed: AdminClient, alice: Client
) -> None:
    channel = free_channel()
    subscription = alice.subscribe("md.us.eq.>")
    assert subscription.next(0.0) is None
    feed.register(registered_on(channel, A_ID))
    with adapter_on(channel, A_ID, feed) as publisher:
        number = 0

        def is_there() -> bool:
            nonlocal number
            number += 1
            publisher.publish_batch(Originated(AAPL, [number]))
            return subscription.next(0.05) is not None

        wait_until(is_there, "the stream")


# Over TCP


def serving(conduct: Any, opened: list[OpenStream], publisher_id: int = A_ID) -> Service:
    async def serve(connection: Any) -> None:
        request = await connection.receive()
        opened.append(request)
        await connection.send(StreamOpened("adapter", publisher_id, TERM, [STREAM_ID]))
        await conduct(connection, request)
        async for _ in connection:
            pass

    return Service(serve)


@pytest.mark.spec("ADM-2")
def test_a_delayed_stream_is_asked_for_with_its_delay(server: AdminServer, feed: AdminClient) -> None:
    opened: list[OpenStream] = []

    async def conduct(connection: Any, request: OpenStream) -> None:
        pass

    with serving(conduct, opened) as service:
        feed.register(registered_on(free_channel(), A_ID, service_port=service.port))
        with penstock.connect(server.url, credentials=credentials("dora")) as dora:
            dora.subscribe("md.us.eq.>")
            wait_until(lambda: opened, "the stream")
    assert opened[0].delay_s == 15 * 60


def test_a_stream_over_tcp_survives_its_connection(feed: AdminClient, alice: Client) -> None:
    opened: list[OpenStream] = []

    async def conduct(connection: Any, request: OpenStream) -> None:
        if len(opened) == 1:
            await connection.send(Packets(packets(AAPL, range(1, 200), publisher_id=A_ID)))
            await connection.close()
        else:
            await connection.send(Packets(packets(AAPL, range(150, 301), publisher_id=A_ID)))

    with serving(conduct, opened) as service:
        feed.register(registered_on(free_channel(), A_ID, service_port=service.port))
        subscription = alice.subscribe("md.us.eq.AAPL.>", transport="tcp")
        assert [each.seq for each in take(subscription, 300)] == list(range(1, 301))
        subscription.close()
    assert opened[0].topics == ["md.us.eq.AAPL.>"]
    assert opened[0].token
    assert subscription.losses == []


def test_a_refusal_of_an_adapter_ends_the_subscription(feed: AdminClient, alice: Client) -> None:
    async def conduct(connection: Any, request: OpenStream) -> None:
        await connection.send(StreamRefused("revoked", "bill not paid"))

    with serving(conduct, []) as service:
        feed.register(registered_on(free_channel(), A_ID, service_port=service.port))
        subscription = alice.subscribe("md.us.eq.AAPL.>", transport="tcp")
        with pytest.raises(RevokedError, match="bill not paid"):
            take(subscription, 1)


@pytest.mark.spec("SUB-5")
def test_a_late_subscriber_gets_the_image_and_then_what_follows_it(feed: AdminClient, alice: Client) -> None:
    """The first image is older than the live stream, so the client requests another one; live messages arrive in the
    meantime."""
    opened: list[OpenStream] = []
    channel = free_channel()
    image = int(OriginFlag.SYNCHRONISED | OriginFlag.IMAGE)
    with adapter_on(channel, A_ID, feed) as publisher:
        publisher.publish_batch(Originated(AAPL, range(1, 101)))

        async def conduct(connection: Any, request: OpenStream) -> None:
            last = 90 if len(opened) == 1 else 110
            if len(opened) == 1:  # the subscriber is listening already
                publisher.publish_batch(Originated(AAPL, range(101, 121)))
            positions = [Position(STREAM_ID, TERM, last)]
            await connection.send(ImageBegin(positions))
            await connection.send(Packets(packets(AAPL, [last], publisher_id=A_ID, flags=image)))
            await connection.send(ImageEnd(positions))

        with serving(conduct, opened) as service:
            feed.register(registered_on(channel, A_ID, service_port=service.port))
            subscription = alice.subscribe("md.us.eq.AAPL.>", image=True)
            current, *updates = take(subscription, 11)
            publisher.publish_batch(Originated(AAPL, [121]))
            updates += take(subscription, 1)
            subscription.close()
    assert (current.bid_size, current.source.flags) == (110, image)
    assert [each.seq for each in updates] == list(range(111, 122))
    assert (opened[0].image, opened[0].live) == (True, False)


@pytest.mark.spec("SUB-5")
def test_an_image_that_is_ahead_of_the_stream_is_not_followed_by_older_messages(
    feed: AdminClient, alice: Client
) -> None:
    channel = free_channel()
    image = int(OriginFlag.SYNCHRONISED | OriginFlag.IMAGE)

    async def conduct(connection: Any, request: OpenStream) -> None:
        positions = [Position(STREAM_ID, TERM, 15)]
        await connection.send(Packets(packets(AAPL, [15], publisher_id=A_ID, flags=image)))
        await connection.send(ImageEnd(positions))

    with serving(conduct, []) as service, adapter_on(channel, A_ID, feed) as publisher:
        feed.register(registered_on(channel, A_ID, service_port=service.port))
        subscription = alice.subscribe("md.us.eq.AAPL.>", image=True)
        (current,) = take(subscription, 1)
        publisher.publish_batch(Originated(AAPL, range(10, 21)))
        assert [each.seq for each in take(subscription, 5)] == [16, 17, 18, 19, 20]
        subscription.close()
    assert current.bid_size == 15


@pytest.mark.spec("SUB-5")
def test_what_is_not_ours_between_the_image_and_the_first_update_over_tcp_is_not_lost(
    feed: AdminClient, alice: Client
) -> None:
    is_joined = threading.Event()

    async def conduct(connection: Any, request: OpenStream) -> None:
        if request.image:
            await connection.send(Packets(packets(AAPL, [5], publisher_id=A_ID)))
            await connection.send(ImageEnd([Position(STREAM_ID, TERM, 5)]))
        else:
            await asyncio.to_thread(is_joined.wait, 30)
            await connection.send(Packets(packets(AAPL, [9, 12], publisher_id=A_ID)))

    with serving(conduct, []) as service:
        feed.register(registered_on(free_channel(), A_ID, service_port=service.port))
        subscription = alice.subscribe("md.us.eq.AAPL.>", image=True, transport="tcp")
        taken = take(subscription, 1)
        is_joined.set()
        taken += take(subscription, 2)
        lost = subscription.statistics().lost
        subscription.close()
    assert [each.seq for each in taken] == [5, 9, 12]
    assert lost == 0


@pytest.mark.spec("SUB-5")
def test_other_topics_while_the_image_is_awaited_begin_anew(feed: AdminClient, alice: Client) -> None:
    """Each image is requested after a live stream of the same topics was opened."""
    opened: list[OpenStream] = []

    async def conduct(connection: Any, request: OpenStream) -> None:
        if request.topics == ["md.us.eq.IBM.>"] and request.image:
            await connection.send(Packets(packets(IBM, [5], publisher_id=A_ID)))
            await connection.send(ImageEnd([Position(STREAM_ID, TERM, 5)]))
        elif not request.image:
            topic, numbers = (IBM, [5, 9]) if request.topics == ["md.us.eq.IBM.>"] else (AAPL, [7])
            await connection.send(Packets(packets(topic, numbers, publisher_id=A_ID)))

    with serving(conduct, opened) as service:
        feed.register(registered_on(free_channel(), A_ID, service_port=service.port))
        subscription = alice.subscribe("md.us.eq.AAPL.>", image=True, transport="tcp")
        wait_until(lambda: subscription.next(0.01) is None and len(opened) == 2, "the request for an image")
        subscription.modify("md.us.eq.IBM.>")
        taken = take(subscription, 2)
        lost = subscription.statistics().lost
        subscription.close()
    assert [(each.topic, each.seq) for each in taken] == [(IBM, 5), (IBM, 9)]
    assert lost == 0
    asked = [(each.topics, each.image) for each in opened]
    assert asked == [([f"md.us.eq.{name}.>"], image) for name in ("AAPL", "IBM") for image in (False, True)]


@pytest.mark.spec("SUB-3", "SUB-4")
def test_contributions_reach_every_adapter_and_are_sent_again_to_one_that_returns(
    feed: AdminClient, alice: Client
) -> None:
    taken: dict[int, list[Any]] = {A_ID: [], B_ID: []}
    connections: list[int] = []

    def adapter(publisher_id: int) -> Service:
        async def serve(connection: Any) -> None:
            await connection.receive()
            connections.append(publisher_id)
            await connection.send(StreamOpened("adapter", publisher_id, TERM, [9]))
            async for said in connection:
                if not isinstance(said, Contribute):
                    continue
                mine = taken[publisher_id]
                if publisher_id == B_ID and connections.count(B_ID) == 1 and said.messages:
                    await connection.close()  # accepts no data, and dies
                    return
                mine += said.messages[len(mine) + 1 - said.first_sequence :] if said.messages else []
                await connection.send(Contributed(said.stream, len(mine) + 1))

        return Service(serve)

    with adapter(A_ID) as a, adapter(B_ID) as b:
        feed.register(registered_on(free_channel(), A_ID, service_port=a.port))
        feed.register(registered_on(free_channel(), B_ID, index=1, service_port=b.port))
        contributor = alice.contribute("desk", "derived.desk.>")
        wait_until(lambda: len(set(connections)) == 2, "both connections")
        for number in range(1, 51):
            contributor.send("derived.desk.mid", QUOTE.new(bid_size=number))
        wait_until(lambda: len(taken[B_ID]) == 50, "the second adapter")
        assert contributor.flush(30)
        with pytest.raises(NotEntitledError):
            contributor.send("derived.other.mid", b"")
        contributor.cancel()
    assert taken[A_ID] == taken[B_ID]
    assert [QUOTE.view(each.payload).bid_size for each in taken[A_ID]] == list(range(1, 51))
    assert {(each.topic, each.model_id) for each in taken[A_ID]} == {("derived.desk.mid", QUOTE.id)}


def test_closing_leaves_nothing_running(server: AdminServer, feed: AdminClient) -> None:
    channel = free_channel()
    feed.register(registered_on(channel, A_ID))
    before = threading.active_count()
    client = penstock.connect(server.url, credentials=credentials("alice"), config=ClientConfig())
    client.subscribe("md.us.eq.>")
    client.subscribe("md.us.eq.>", transport="tcp")
    assert threading.active_count() > before
    client.close()
    assert threading.active_count() <= before
