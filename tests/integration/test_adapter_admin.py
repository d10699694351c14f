"""An adapter and an administration server as real processes: grants, revocation, the server's end, sealed feeds."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin_kit import config, credentials, credentials_file
from integration.feed_kit import Feed, running_feed
from integration.test_adapter import contents, until
from integration.test_admin_processes import document, serving
from penstock.bench.adapters import wait_for
from penstock.feed.adapter_config import AdminConfig
from penstock.feed.service.config import ServiceConfig
from penstock.middleware import DeliverBatch
from penstock.middleware.driver import MulticastReceiver
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    OpenStream,
    Packets,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.control_driver import ControlConnection, connect_control
from penstock.security import Opener, StreamKeyRing
from penstock.security.client import AdminClient
from penstock.wire import Extension, MessageFlag, decode_origin, decode_seal

TOPICS = ("md.us.eq.>",)


@contextlib.contextmanager
def plant(directory: Path, *, sealed: bool = False) -> Iterator[tuple[Feed, str, object]]:
    with serving(document(directory / "admin.toml", config(directory))) as (server, url):
        admin = AdminConfig(
            url=url,
            credentials=str(credentials_file(directory, "feed")),
            topics=TOPICS,
            contributions=("derived.>",),
        )
        with running_feed(directory, 1, admin=admin, service=ServiceConfig(), publish={"sealed": sealed}) as feed:
            wait_for(lambda: feed.adapters[0].status().is_registered, "the adapter is registered")
            yield feed, url, server


async def connected(feed: Feed, token: str) -> ControlConnection[UnicastMessage]:
    port = feed.adapters[0].facts["service_port"]
    connection = await connect_control(PROTOCOL, "127.0.0.1", port, node="test", config=CONNECTION)
    await connection.send(OpenStream(token, ["md.us.eq.>"]))
    return connection


@pytest.mark.spec("ADM-4")
@pytest.mark.spec("ADM-5")
def test_a_subscriber_is_served_by_its_token_and_told_when_it_is_revoked(
    tmp_path: Path,
) -> None:
    with plant(tmp_path) as (feed, url, _):
        (adapter,) = feed.adapters
        with AdminClient.connect(url, credentials("alice")) as alice:
            brokered = alice.subscribe(["md.us.eq.>"])
        assert brokered.streams[0].addresses[0].service_port == adapter.facts["service_port"]

        async def subscribe() -> UnicastMessage:
            async with await connected(feed, brokered.token) as connection:
                said = await until(connection, lambda each: isinstance(each, Packets))
                assert isinstance(said[0], StreamOpened)
                accounts = adapter.status().subscribers
                assert [(each.client, each.subscription_id) for each in accounts] == [
                    ("alice", brokered.subscription_id)
                ]
                with AdminClient.connect(url, credentials("root")) as root:
                    await asyncio.to_thread(root.revoke, "alice", "left the firm")
                refused = (await until(connection, lambda each: isinstance(each, StreamRefused)))[-1]
            async with await connected(feed, brokered.token) as connection:
                again = (await until(connection, lambda each: isinstance(each, StreamRefused)))[-1]
            assert isinstance(again, StreamRefused)
            assert again.code == "revoked"
            async with await connected(feed, "ps1.some.thing.else") as connection:
                stranger = (await until(connection, lambda each: isinstance(each, StreamRefused)))[-1]
            assert isinstance(stranger, StreamRefused)
            assert stranger.code == "token"
            return refused

        refusal = asyncio.run(subscribe())
        assert isinstance(refusal, StreamRefused)
        assert (refusal.code, "left the firm" in refusal.reason) == ("revoked", True)
        assert b'client="alice"' in adapter.page("/metrics")


@pytest.mark.spec("ADM-8")
def test_an_adapter_goes_on_when_the_server_is_gone_and_so_do_new_streams(tmp_path: Path) -> None:
    with plant(tmp_path) as (feed, url, server):
        (adapter,) = feed.adapters
        with AdminClient.connect(url, credentials("bob")) as bob:
            brokered = bob.subscribe(["md.us.eq.>"])
        server.process.kill()  # type: ignore[attr-defined]
        server.process.wait()  # type: ignore[attr-defined]
        adapter.kill()
        adapter.start()  # the keys of tokens are on its disk

        async def subscribe() -> list[UnicastMessage]:
            async with await connected(feed, brokered.token) as connection:
                return await until(connection, lambda each: isinstance(each, Packets))

        assert contents(asyncio.run(subscribe()))


@pytest.mark.spec("ADM-7")
def test_a_sealed_feed_is_open_only_to_who_holds_the_key(tmp_path: Path) -> None:
    with plant(tmp_path, sealed=True) as (feed, url, _):
        with AdminClient.connect(url, credentials("alice")) as alice:
            brokered = alice.subscribe(["md.us.eq.>"])
        opener = Opener(StreamKeyRing(brokered.streams[0].keys))
        opened = 0
        with MulticastReceiver(feed.channels) as receiver:
            while opened < 100:
                for each in receiver.receive(10):
                    if not isinstance(each, DeliverBatch):
                        continue
                    epoch = int(each.messages.packets[0]["epoch"])
                    for message in each.messages:
                        assert message.flags & MessageFlag.SEALED
                        content = opener.open(
                            bytes(message.payload),
                            decode_seal(message.extensions[Extension.SEAL]),
                            publisher_id=message.publisher_id,
                            epoch=epoch,
                            topic=message.topic.encode(),
                            model_id=message.model_id,
                            model_version=message.model_version,
                            origin=decode_origin(message.extensions[Extension.ORIGIN]),
                        )
                        assert content != bytes(message.payload)
                        opened += 1

        async def subscribe() -> list[UnicastMessage]:
            async with await connected(feed, brokered.token) as connection:
                return await until(connection, lambda each: isinstance(each, Packets))

        said = asyncio.run(subscribe())  # over TCP it comes open: the stream is this subscriber's alone
        assert contents(said)
