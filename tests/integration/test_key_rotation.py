"""Authentication keys that change while programs run: claims, `penstock pub` and `penstock capture`."""

import concurrent.futures
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from admin_kit import config, credentials, credentials_file
from integration.command_kit import completed, running
from integration.test_capture import payloads
from penstock.admin import AdminLimits
from penstock.admin.live.driver import AdminServer
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastReceiver
from penstock.net.udp import Channel, free_channel
from penstock.security.core.authentication import PUBLISHERS
from penstock.security.core.brokering import AuthenticationChanged
from penstock.security.live.authentication_watch import AuthenticationWatch
from penstock.security.live.client import AdminClient
from penstock.security.live.key_lease import ReceivingLease
from penstock.wire import Authenticator, Packer
from waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AdminServer]:
    with AdminServer(config(tmp_path, limits=AdminLimits(key_grace_s=0.0, publisher_wait_s=4.0))) as server:
        yield server


def rotate(server: AdminServer, tmp_path: Path) -> None:
    """Remove a holder of the key from the policy; return when the old key is no longer accepted."""
    with AdminClient.connect(server.url, credentials("bob")) as bob:
        (before,) = bob.authentication().scopes[0].keys
    with AdminClient.connect(server.url, credentials("root")) as root:
        text = (tmp_path / "policy.toml").read_text()
        start = text.index("[clients.bob]")
        text = text[:start] + text[text.index("[clients.", start + 1) :]
        root.set_policy(text.replace('"alice", "bob"', '"alice"'))
    with AdminClient.connect(server.url, credentials("alice")) as alice:
        wait_until(lambda: before not in alice.authentication().scopes[0].keys, "the end of the old key")


@pytest.mark.spec("AUTH-2")
def test_a_claim_is_answered_when_receivers_know_the_publisher(server: AdminServer) -> None:
    with (
        AdminClient.connect(server.url, credentials("alice")) as alice,
        AdminClient.connect(server.url, credentials("quill")) as quill,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        after = alice.authentication().events_after
        polling = pool.submit(alice.events, after)
        wait_until(lambda: bool(server.live.service.core.readers._readers), "the request for events")
        claiming = pool.submit(quill.claim_publisher, "desk")
        heard = polling.result(PATIENCE_SECONDS)
        assert isinstance(heard.events[0].body, AuthenticationChanged)
        # alice has received the event; her next request shows that she has applied it
        assert not concurrent.futures.wait([claiming], timeout=0.3).done
        polling = pool.submit(alice.events, heard.next_after)
        claimed = claiming.result(PATIENCE_SECONDS)
        assert [each.publisher_id for each in heard.events[0].body.authentication.publishers] == [claimed.publisher_id]
        alice.close()
        polling.exception(PATIENCE_SECONDS)
        # alice is gone, and her request must end too
        wait_until(lambda: not server.live.service.core.readers._readers, "the end of the request for events")
        assert quill.claim_publisher("desk").epoch == 2


@pytest.mark.spec("AUTH-2")
def test_a_claim_does_not_wait_for_a_former_session(server: AdminServer) -> None:
    core = server.live.service.core

    def unaware(number: int) -> list[str]:
        return core.authentication.unaware(PUBLISHERS, number, server.live.service.now_ns)

    with (
        AdminClient.connect(server.url, credentials("alice")) as alice,
        AdminClient.connect(server.url, credentials("quill")) as quill,
    ):
        before = alice.authentication().events_after
        quill.claim_publisher("desk")
        claimed = core.state.meta.event_number
        alice.events(before, wait_s=0)
        assert unaware(claimed) == ["alice"]
        alice.login()
        alice.events(claimed, wait_s=0)
        assert unaware(claimed) == []


@pytest.mark.spec("AUTH-2")
def test_receivers_get_the_first_packet_of_a_new_publisher(server: AdminServer) -> None:
    channel = free_channel()
    lease = ReceivingLease()
    authenticator = Authenticator(lease=lease.flag)
    alice = AdminClient.connect(server.url, credentials("alice"))
    heard: list[bytes] = []
    with (
        AuthenticationWatch(alice, authenticator.use, lease),
        MulticastReceiver([channel], authenticator=authenticator) as receiver,
        penstock.connect(server.url, credentials=credentials("quill")) as quill,
    ):
        for number in range(5):
            with quill.publisher(channel, name=f"desk-{number}", config=PublisherConfig(linger_ms=1)) as publisher:
                publisher.publish("a.b", str(number).encode())

        def hear() -> bool:
            for each in receiver.receive(0.01):
                heard.extend(bytes(message.payload) for message in getattr(each, "messages", ()))
            return len(heard) >= 5

        wait_until(hear, "the first message of each publisher")
    assert heard == [str(number).encode() for number in range(5)]
    assert authenticator.unvouched == 0


def stranger_sends(channel: Channel) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        packer = Packer(4_711, channel.group_id, 1)
        packer.add("a.b", b"forged")
        stranger.sendto(packer.flush() or b"", (channel.group, channel.port))


@pytest.mark.spec("AUTH-1")
def test_pub_and_capture_follow_a_key_rotation(server: AdminServer, tmp_path: Path) -> None:
    channel = free_channel()
    reading = ["--connect", server.url, "--credentials", str(credentials_file(tmp_path, "filter"))]
    writing = ["--connect", server.url, "--credentials", str(credentials_file(tmp_path, "quill")), "--name", "desk"]
    with running("capture", str(channel), "--to", str(tmp_path / "j"), *reading) as capture:
        capture.wait_for_output("listening")
        with running("pub", str(channel), "--raw", "--topic", "a.b", *writing) as pub:
            pub.write("one\n")
            wait_until(lambda: payloads(tmp_path / "j") == [b"one"], "the first message")
            stranger_sends(channel)
            rotate(server, tmp_path)
            pub.write("two\n")
            wait_until(lambda: payloads(tmp_path / "j") == [b"one", b"two"], "the message with the new key")
            assert pub.end() == 0, pub.err
        capture.wait_for_output("cause=goodbye")
        assert capture.interrupt() == 0, capture.err
        assert "2 messages in" in capture.err
        assert "0 packets lost" in capture.err
        assert "; 1 not authentic" in capture.err


def test_capture_needs_credentials_to_connect(tmp_path: Path) -> None:
    done = completed("capture", str(free_channel()), "--to", str(tmp_path / "j"), "--connect", "penstock://127.0.0.1:1")
    assert "error [config]" in done.stderr
    assert "--connect and --credentials require each other" in done.stderr
