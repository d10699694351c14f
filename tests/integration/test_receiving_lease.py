"""Receivers whose administration server was killed stop accepting packets, and resume when the server is back."""

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from admin_kit import config, credentials, credentials_file
from client_kit import registered_on
from integration.command_kit import Running, running
from integration.test_admin_processes import document, serving
from integration.test_client import A_ID
from integration.test_client_filter import _arrives
from penstock.admin import AdminLimits
from penstock.client import ClientConfig
from penstock.middleware import PublisherConfig
from penstock.middleware.live import MulticastReceiver
from penstock.net.udp import Channel, free_channel, free_ports
from penstock.security.live.authentication_watch import AuthenticationWatch
from penstock.security.live.client import AdminClient
from penstock.security.live.key_lease import ReceivingLease
from penstock.wire import Authenticator
from waiting import PATIENCE_SECONDS, wait_until

LEASE_S = 4.0
QUICK = PublisherConfig(linger_ms=1)


def server_document(directory: Path) -> Path:
    settings = config(directory, limits=AdminLimits(), port=free_ports(1)[0])
    path = document(directory / "admin.toml", settings)
    path.write_text(path.read_text() + f"key_lease_s = {LEASE_S}\nheartbeat_s = 0.5\n")
    return path


def page(url: str, path: str) -> str:
    """Fails unless the answer has the status 200."""
    with urllib.request.urlopen(url + path, timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


def dropped(url: str) -> int:
    found = re.findall(
        r'^penstock_packets_dropped_total\{.*cause="lease_ended".*\} (\S+)$', page(url, "/metrics"), re.MULTILINE
    )
    return int(sum(float(each) for each in found))


def lease_left_s(url: str) -> float:
    return float(json.loads(page(url, "/status"))["receiving_lease_s"])


@contextlib.contextmanager
def filter_process(directory: Path, channel: Channel, server: str, port: int) -> Iterator[tuple[Running, str]]:
    path = directory / "edge.toml"
    path.write_text(
        f'name = "edge"\nchannels = ["{channel}"]\nstate_directory = "{directory / "filter-state"}"\n'
        f"[control]\nport = {port}\n"
        f'[admin]\nurl = "{server}"\ncredentials = "{credentials_file(directory, "filter")}"\n'
    )
    with running("filter", "--config", str(path)) as process:
        process.wait_for_output('"control_port"')
        yield process, json.loads(process.out.splitlines()[0])["url"]


@pytest.mark.spec("AUTH-6")
def test_a_receiver_of_a_killed_server_stops_and_resumes_when_the_server_is_back(tmp_path: Path) -> None:
    channel, path = free_channel(), server_document(tmp_path)
    lease = ReceivingLease()
    authenticator = Authenticator(lease=lease.flag)
    heard: list[bytes] = []
    with contextlib.ExitStack() as stack:
        with serving(path) as (server, url):
            alice = AdminClient.connect(url, credentials("alice"))
            stack.enter_context(AuthenticationWatch(alice, authenticator.use, lease))
            receiver = stack.enter_context(MulticastReceiver([channel], authenticator=authenticator))
            quill = stack.enter_context(penstock.connect(url, credentials=credentials("quill")))
            publisher = stack.enter_context(quill.publisher(channel, name="desk", config=QUICK))

            def hear() -> int:
                publisher.publish("a.b", b"1")
                for each in receiver.receive(0.01):
                    heard.extend(bytes(message.payload) for message in getattr(each, "messages", ()))
                return len(heard)

            wait_until(hear, "a message")
            server.process.kill()
            server.end()
        wait_until(lambda: hear() and authenticator.lease_ended, "a packet that is dropped")
        before, first = len(heard), authenticator.lease_ended
        wait_until(lambda: hear() and authenticator.lease_ended >= first + 20, "further packets that are dropped")
        assert len(heard) == before
        with serving(path):
            wait_until(lambda: hear() > before, "a message after the return of the server")


@pytest.mark.spec("AUTH-6")
def test_a_filter_of_a_killed_server_stops_and_a_restart_of_the_filter_does_not_help(tmp_path: Path) -> None:
    channel, path, port = free_channel(), server_document(tmp_path), free_ports(1)[0]
    with contextlib.ExitStack() as stack:
        with serving(path) as (server, url):
            feed = stack.enter_context(AdminClient.connect(url, credentials("feed")))
            feed.register(registered_on(channel, A_ID))
            first = stack.enter_context(contextlib.ExitStack())
            process, here = first.enter_context(filter_process(tmp_path, channel, url, port))
            asking = ClientConfig(filter=f"127.0.0.1:{port}")
            alice = stack.enter_context(penstock.connect(url, credentials=credentials("alice"), config=asking))
            alice.subscribe("md.us.eq.AAPL.>")  # a token is shown to the filter
            inbox = stack.enter_context(alice.inbox(channel))
            quill = stack.enter_context(penstock.connect(url, credentials=credentials("quill")))
            publisher = stack.enter_context(quill.publisher(channel, name="desk", config=QUICK))
            wait_until(lambda: _arrives(publisher, alice.address, inbox, b"1"), "a message")
            server.process.kill()
            server.end()
        process.wait_for_output("receiving_lease_ends_soon")

        def is_dropped() -> bool:
            publisher.send_to(alice.address, b"1")
            return dropped(here) > 0

        wait_until(is_dropped, "a packet that is dropped")
        while inbox.next(0.1) is not None:
            pass
        assert not _arrives(publisher, alice.address, inbox, b"1")
        assert "receiving has ended" in page(here, "/health")
        assert process.interrupt() == 0, process.err
        first.close()
        _, here = stack.enter_context(filter_process(tmp_path, channel, url, port))
        assert lease_left_s(here) == 0
        assert "receiving has" in page(here, "/health")
        with serving(path):
            wait_until(lambda: lease_left_s(here) > 0, "the lease of the restarted filter")
            wait_until(lambda: _arrives(publisher, alice.address, inbox, b"1"), "a message after the server's return")


@pytest.mark.spec("AUTH-6")
def test_a_filter_is_healthy_before_the_first_answer_of_a_server(tmp_path: Path) -> None:
    nowhere = f"penstock://127.0.0.1:{free_ports(1)[0]}"
    with filter_process(tmp_path, free_channel(), nowhere, free_ports(1)[0]) as (_, here):
        health = json.loads(page(here, "/health"))
        assert "receiving has not begun" in str(health)
        assert lease_left_s(here) == 0
