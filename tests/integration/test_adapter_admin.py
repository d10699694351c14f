"""An adapter and an administration server as real processes: grants, revocation, the server's end, sealed feeds."""

import asyncio
import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from admin_kit import begun, config, credentials, credentials_file
from integration.feed_kit import Feed, running_feed
from integration.relay import Relay
from integration.test_adapter import contents, until
from integration.test_admin_processes import document, serving
from penstock.admin import AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import AuthenticationError, RefusedError, SealKeyError
from penstock.bench.adapters import AdapterProcess, wait_for
from penstock.feed.adapter_config import AdminConfig
from penstock.feed.config import ServiceConfig
from penstock.feed.core.sync import messages as feed_sync
from penstock.feed.core.sync.messages import AdapterState
from penstock.middleware import DeliverBatch
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.live import MulticastReceiver
from penstock.middleware.unicast import (
    CONNECTION,
    PROTOCOL,
    OpenStream,
    Packets,
    StreamOpened,
    StreamRefused,
    UnicastMessage,
)
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.net.secret import Secret, read_secret
from penstock.net.udp import host_socket
from penstock.security import Opener, StreamKey, StreamKeyRing
from penstock.security.core.authentication import scope_of
from penstock.security.live.client import AdminClient
from penstock.wire import (
    Authenticator,
    Extension,
    MessageFlag,
    PacketMessage,
    decode_origin,
    decode_seal,
    encode_nack,
)

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


@pytest.mark.spec("AUTH-5")
def test_a_process_of_this_machine_cannot_pass_for_another_adapter_of_the_feed(tmp_path: Path) -> None:
    """An adapter that claims a higher term would end the active adapter's term."""
    with plant(tmp_path) as (feed, _, _):
        (adapter,) = feed.adapters
        wait_for(lambda: adapter.status().role == "active", "the adapter is active")
        term = adapter.status().term
        claim = AdapterState(1, term + 1, True, True, True, True, 1_000)

        async def say(secret: Secret | None) -> None:
            port = adapter.facts["peers_port"]
            async with await connect_control(
                feed_sync.PROTOCOL, "127.0.0.1", port, node="itch.1", secret=secret, config=feed_sync.CONNECTION
            ) as connection:
                await connection.send(claim)
                await until(connection, lambda said: isinstance(said, AdapterState) and said.term > term)

        for secret in (None, Secret(b"a secret of somebody else")):
            with pytest.raises((AuthenticationError, RefusedError), match="secret"):
                asyncio.run(say(secret))
        assert (adapter.status().role, adapter.status().term, adapter.status().peers) == ("active", term, [])
        asyncio.run(say(read_secret(tmp_path / "feed.secret")))
        assert adapter.status().term > term


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


class Listener:
    """An eavesdropper on the segment who has some keys, and counts the messages that they open."""

    def __init__(self, receiver: MulticastReceiver, keys: list[StreamKey]) -> None:
        self._receiver = receiver
        self._opener = Opener(StreamKeyRing(keys))
        self.opened = 0
        self.unopened = 0

    def listen(self, seconds: float) -> bool:
        """True if messages arrived within that time."""
        before = self.opened + self.unopened
        for each in self._receiver.receive(seconds):
            if not isinstance(each, DeliverBatch):
                continue
            epoch = int(each.messages.packets[0]["epoch"])
            for message in each.messages:
                if message.topic == DISCONTINUITY_TOPIC:
                    continue  # announcements are open: they contain no data of the feed
                assert message.flags & MessageFlag.SEALED
                try:
                    content = open_sealed(self._opener, message, epoch)
                except SealKeyError:
                    self.unopened += 1
                else:
                    assert content != bytes(message.payload)
                    self.opened += 1
        return self.opened + self.unopened > before

    def has_heard_all(self) -> bool:
        """True if nothing is left in the receiver and in the buffer of its socket."""
        heard = [self.listen(0.1) for _ in range(10)]
        return not any(heard)


def open_sealed(opener: Opener, message: PacketMessage, epoch: int) -> bytes:
    return opener.open(
        bytes(message.payload),
        decode_seal(message.extensions[Extension.SEAL]),
        publisher_id=message.publisher_id,
        epoch=epoch,
        topic=message.topic.encode(),
        model_id=message.model_id,
        model_version=message.model_version,
        origin=decode_origin(message.extensions[Extension.ORIGIN]),
    )


def counted(adapter: AdapterProcess, name: str) -> int:
    """A counter on the adapter's page, summed over its labels."""
    found = re.findall(
        rb"^penstock_" + name.encode() + rb"(?:_total)?\{[^}]*\} ([0-9.e+]+)$", adapter.page("/metrics"), re.MULTILINE
    )
    return sum(int(float(each)) for each in found)


@pytest.mark.spec("AUTH-6", "ADM-7")
def test_a_revoked_client_reads_nothing_when_the_lease_of_an_adapter_that_is_cut_off_has_ended(tmp_path: Path) -> None:
    limits = AdminLimits(key_grace_s=0.0, key_rotation_s=1.0, heartbeat_s=0.2, key_lease_s=3.0)
    with AdminServer(config(tmp_path, limits=limits)) as server, Relay(server.port) as relay:
        admin = AdminConfig(
            url=f"penstock://127.0.0.1:{relay.port}",
            credentials=str(credentials_file(tmp_path, "feed")),
            topics=TOPICS,
            contributions=("derived.>",),
        )
        options = {"admin": admin, "service": ServiceConfig(), "publish": {"sealed": True}}
        with (
            running_feed(tmp_path, 1, rate=500, **options) as feed,
            MulticastReceiver(feed.channels) as receiver,
            AdminClient.connect(server.url, credentials("root")) as root,
            AdminClient.connect(server.url, credentials("bob")) as bob,
            AdminClient.connect(server.url, credentials("alice")) as alice,
        ):
            (adapter,) = feed.adapters
            wait_for(lambda: adapter.status().is_registered, "the adapter is registered")
            bob.subscribe(["md.us.eq.>"])
            revoked = Listener(receiver, begun(alice, ["md.us.eq.>"]).streams[0].keys)
            wait_for(lambda: revoked.listen(1) and revoked.opened > 100, "messages that alice can read")
            relay.cut()
            root.revoke("alice", "left the firm")
            wait_for(lambda: "sealing ends in" in adapter.status().sealing_trouble, "the warning")
            wait_for(lambda: adapter.status().sealing_lease_s == 0, "the end of the lease")
            assert "sealing has ended" in adapter.status().sealing_trouble
            with pytest.raises(HTTPError) as unwell:
                adapter.page("/health")
            assert b"sealing has ended" in unwell.value.read()
            wait_for(revoked.has_heard_all, "the last of what was on its way")
            opened, published = revoked.opened, counted(adapter, "messages_published")
            unsealed = counted(adapter, "messages_unsealed")
            wait_for(lambda: counted(adapter, "messages_unsealed") > unsealed + 100, "messages that are not sent")
            wait_for(revoked.has_heard_all, "silence")
            assert (revoked.opened, counted(adapter, "messages_published")) == (opened, published)

            relay.heal()
            wait_for(lambda: adapter.status().sealing_trouble == "", "another lease")
            entitled = Listener(receiver, begun(bob, ["md.us.eq.>"]).streams[0].keys)
            wait_for(lambda: entitled.listen(1) and entitled.opened > 100, "messages that bob can read")
            wait_for(lambda: revoked.listen(1) and revoked.unopened > 100, "messages that alice cannot read")
            assert revoked.opened == opened


@pytest.mark.spec("AUTH-6")
def test_an_adapter_that_is_cut_off_answers_no_repair_requests_after_its_lease(tmp_path: Path) -> None:
    limits = AdminLimits(heartbeat_s=0.2, key_lease_s=3.0)
    with AdminServer(config(tmp_path, limits=limits)) as server, Relay(server.port) as relay:
        admin = AdminConfig(
            url=f"penstock://127.0.0.1:{relay.port}",
            credentials=str(credentials_file(tmp_path, "feed")),
            topics=TOPICS,
        )
        with (
            running_feed(tmp_path, 1, rate=500, admin=admin, service=ServiceConfig()) as feed,
            MulticastReceiver(feed.channels) as receiver,
            AdminClient.connect(server.url, credentials("alice")) as alice,
            host_socket("127.0.0.1") as asking,
        ):
            (adapter,) = feed.adapters
            wait_for(lambda: adapter.status().is_registered, "the adapter is registered")
            told = alice.subscribe(["md.us.eq.>"]).streams[0].authentication
            assert told is not None
            authenticator = Authenticator([scope_of(told)])
            wait_for(lambda: receiver.receive(0.1) and receiver._core.streams(), "packets of the adapter")
            (stream,) = receiver._core.streams()
            numbers = iter(range(1, 1_000_000))

            def ask() -> int:
                """Requests that the adapter has answered."""
                ranges = [(stream.next_sequence - 1, stream.next_sequence - 1)]
                key, number = stream.key, next(numbers)
                request = encode_nack(key.publisher_id, key.group, stream.epoch, ranges, requester=7, number=number)
                asking.sendto(request + authenticator.trailer(request), stream.source)
                return counted(adapter, "nacks_received")

            wait_for(lambda: ask() > 0, "an answer")
            relay.cut()
            wait_for(lambda: ask() and dropped(adapter) > 0, "a request after the end of the lease")
            answered, refused = counted(adapter, "nacks_received"), dropped(adapter)
            wait_for(lambda: ask() and dropped(adapter) > refused + 10, "further requests")
            assert counted(adapter, "nacks_received") == answered
            relay.heal()
            wait_for(lambda: ask() > answered, "an answer after the server is back")


def dropped(adapter: AdapterProcess) -> int:
    page = adapter.page("/metrics").decode()
    found = re.findall(r'^penstock_packets_dropped_total\{.*cause="lease_ended".*\} (\S+)$', page, re.MULTILINE)
    return sum(int(float(each)) for each in found)


@pytest.mark.spec("ADM-7")
def test_a_sealed_feed_is_open_only_to_who_holds_the_key(tmp_path: Path) -> None:
    with plant(tmp_path, sealed=True) as (feed, url, _):
        with AdminClient.connect(url, credentials("alice")) as alice:
            brokered = begun(alice, ["md.us.eq.>"])
        with MulticastReceiver(feed.channels) as receiver:
            alice_hears = Listener(receiver, brokered.streams[0].keys)
            wait_for(lambda: alice_hears.listen(10) and alice_hears.opened >= 100, "messages that alice can read")
            assert alice_hears.unopened == 0
