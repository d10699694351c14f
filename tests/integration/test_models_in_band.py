"""Models that only the adapters know reach clients in the stream: real adapters, and a server without these models."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from admin_kit import config, credentials, credentials_file
from integration.feed_kit import Feed, running_feed
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import NotFoundError
from penstock.bench.adapters import wait_for
from penstock.capture.core.message_reader import UnreadMessage
from penstock.capture.core.replay import replay
from penstock.client import Subscription
from penstock.convert.table import DIRECTORY as TABLES
from penstock.feed.adapter_config import AdminConfig, JournalCaptureConfig
from penstock.feed.config import ServiceConfig
from penstock.journal import JournalReader
from penstock.middleware import Deliver
from penstock.middleware.core.reserved_topics import MODEL_TOPIC
from penstock.middleware.live import MulticastPublisher
from penstock.model import MessageModel, shipped
from waiting import PATIENCE_SECONDS

OWN_ID = 900
QUOTES = "md.us.eq.*.quote"
SELDOM = {"models_in_band": True, "models_interval_s": 3_600}
READABLE_SECONDS = 20.0
IN_BAND = {"models_in_band": True, "models_interval_s": 0.5}


def own_table(directory: Path) -> str:
    """The shipped table, but its quotes have a model that no library and no server knows."""
    text = shipped("quote").text.replace("id = 1\n", f"id = {OWN_ID}\n").replace('name = "quote"', 'name = "own_quote"')
    (directory / "own_quote.toml").write_text(text)
    table = (TABLES / "itch.toml").read_text()
    assert 'model = "quote"' in table
    path = directory / "own-itch.toml"
    path.write_text(table.replace('model = "quote"', 'model = "own_quote.toml"'))
    return str(path)


@contextlib.contextmanager
def plant(directory: Path, count: int, publish: dict[str, Any], **options: Any) -> Iterator[tuple[Feed, AdminServer]]:
    with AdminServer(config(directory)) as server:
        admin = AdminConfig(
            url=server.url,
            credentials=str(credentials_file(directory, "feed")),
            service_host="localhost",
            topics=("md.us.eq.>",),
        )
        options = {"admin": admin, "service": ServiceConfig(), "table": own_table(directory), **options}
        with running_feed(directory, count, rate=2_000, publish=publish, **options) as feed:
            for adapter in feed.adapters:
                wait_for(lambda adapter=adapter: adapter.status().is_registered, "the adapter is registered")
            wait_for(lambda: any(each.status().role == "active" for each in feed.adapters), "an active adapter")
            yield feed, server


def next_readable(subscription: Subscription, count: int) -> list[Any]:
    """The next messages that can be read; earlier ones had no model yet."""
    deadline = time.monotonic() + READABLE_SECONDS
    found = read(subscription, 1)
    while isinstance(found[-1], UnreadMessage):
        assert time.monotonic() < deadline, "messages came, but no model to read them with"
        found = read(subscription, 1)
    found += read(subscription, count - 1)
    assert not any(isinstance(each, UnreadMessage) for each in found), "a model was known, and then forgotten"
    return found


def assert_quotes(messages: list[Any]) -> None:
    assert {each.model and (each.model.id, each.model.name) for each in messages} == {(OWN_ID, "own_quote")}
    assert all(each.symbol and each.topic.split(".")[3] for each in messages)
    assert any(each.bid_price or each.ask_price for each in messages)


@pytest.mark.spec("ADM-6")
@pytest.mark.parametrize("transport", ["multicast", "tcp"])
@pytest.mark.parametrize("sealed", [False, True])
def test_a_late_joiner_reads_a_model_that_no_server_knows(tmp_path: Path, transport: Any, sealed: bool) -> None:
    with (
        plant(tmp_path, 1, {**IN_BAND, "sealed": sealed}) as (feed, server),
        penstock.connect(server.url, credentials=credentials("alice")) as client,
    ):
        wait_for(lambda: feed.adapters[0].status().streams[0].next_message_sequence > 1_000, "messages flow")
        with pytest.raises(NotFoundError):
            client.admin.model(OWN_ID)
        with client.subscribe(QUOTES, transport=transport) as subscription:
            messages = next_readable(subscription, 200)
            assert_quotes(messages)
            numbers = [each.seq for each in messages]
            assert numbers == sorted(set(numbers))
            assert (subscription.losses, subscription.statistics().unreadable) == ([], 0)


@pytest.mark.spec("ADM-6", "ADM-8")
@pytest.mark.parametrize("transport", ["multicast", "tcp"])
def test_it_is_read_while_the_server_is_gone_by_condition_and_with_an_image(tmp_path: Path, transport: Any) -> None:
    """The beginning of the stream is long past: the adapter sends the models along with the image."""
    with (
        plant(tmp_path, 1, SELDOM) as (feed, server),
        penstock.connect(server.url, credentials=credentials("alice")) as client,
    ):
        wait_for(lambda: feed.adapters[0].status().streams[0].next_message_sequence > 1_000, "messages flow")
        with client.subscribe(QUOTES, where="bid_price > 0", image=True, transport=transport) as subscription:
            server.stop()
            assert_quotes(read(subscription, 200))


@pytest.mark.spec("ADM-6", "SYNC-2", "SYNC-7")
@pytest.mark.parametrize("transport", ["multicast", "tcp"])
def test_active_and_backup_both_send_them_and_every_number_comes_once(tmp_path: Path, transport: Any) -> None:
    with (
        plant(tmp_path, 2, {**IN_BAND, "models_interval_s": 0.1}) as (feed, server),
        penstock.connect(server.url, credentials=credentials("alice")) as client,
    ):
        active, _ = feed.wait_until_synchronised()
        with client.subscribe("md.us.eq.>", transport=transport) as subscription:
            numbers = [each.seq for each in read(subscription, 3_000)]
            active.kill()
            numbers += [each.seq for each in read(subscription, 3_000)]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            assert subscription.losses == []


def read(subscription: Subscription, count: int) -> list[Any]:
    deadline = time.monotonic() + PATIENCE_SECONDS
    found: list[Any] = []
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        if (message := subscription.next(0.1)) is not None:
            found.append(message)
    return found


@pytest.mark.spec("ADM-6")
def test_garbage_where_models_come_is_counted_and_harms_nobody(tmp_path: Path) -> None:
    """Any host on the segment can send packets: packets without a key of the feed are not examined."""
    own = MessageModel.load(Path(own_table(tmp_path)).parent / "own_quote.toml")
    wrong = own.text.replace('"bid_price"', '"bid_prize"').encode()
    with (
        plant(tmp_path, 1, IN_BAND) as (feed, server),
        penstock.connect(server.url, credentials=credentials("alice")) as client,
        client.subscribe(QUOTES, transport="multicast") as subscription,
    ):
        next_readable(subscription, 1)
        with MulticastPublisher(feed.channels[0], publisher_id=666, epoch=1) as stranger:
            for content in (b"\xff", b"id = [", b"#" * 100_000, wrong):
                stranger.publish(MODEL_TOPIC, content)
            assert_quotes(next_readable(subscription, 200))
        assert subscription.statistics().unreadable == 0
        assert client.models.get(OWN_ID, 1) == own


@pytest.mark.spec("ADM-6")
def test_the_journal_has_the_models_of_what_is_in_it(tmp_path: Path) -> None:
    journal = JournalCaptureConfig(path=str(tmp_path / "journal"))
    with plant(tmp_path, 1, IN_BAND, journal=journal) as (feed, _):
        wait_for(lambda: feed.adapters[0].status().streams[0].next_message_sequence > 1_000, "messages flow")
        assert feed.adapters[0].stop() == 0
    with JournalReader.open(tmp_path / "journal") as reader:
        delivered = [each for _, each in replay(reader.read()) if isinstance(each, Deliver)]
    messages = [message for each in delivered for message in each.messages]
    known = {}
    for message in messages:
        if message.topic == MODEL_TOPIC:
            model = MessageModel.parse(bytes(message.payload).decode())
            known[model.id] = model
        elif message.model_id:
            assert known[message.model_id].view(message.payload, message.model_version).symbol
    assert OWN_ID in known


@pytest.mark.spec("ADM-6")
def test_without_the_configuration_no_model_travels(tmp_path: Path) -> None:
    with (
        plant(tmp_path, 1, {}) as (_, server),
        penstock.connect(server.url, credentials=credentials("alice")) as client,
        client.subscribe(QUOTES, transport="tcp") as subscription,
    ):
        assert all(isinstance(each, UnreadMessage) for each in read(subscription, 200))
