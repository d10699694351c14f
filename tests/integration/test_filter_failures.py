"""Filter modules and applications as processes that are killed, and an administration server behind them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from admin_kit import config, credentials, credentials_file
from integration.command_kit import Running, kill, running
from integration.filter_kit import Application, filter_here
from integration.test_filter_process import expected, publish
from penstock.admin.live.driver import AdminServer
from penstock.base.errors import RefusedError
from penstock.filter.client import FilteredReceiver
from penstock.filter.core import control
from penstock.middleware import Deliver, DeliverBatch, LossReceipt, PublisherConfig
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel, free_channel, free_ports
from penstock.security.core.access import AdminAccess
from penstock.security.live.client import AdminClient
from waiting import PATIENCE_SECONDS, wait_until

QUICK = PublisherConfig(linger_ms=1)

APPLICATION = """
import sys
from penstock.filter.client import FilteredReceiver
with FilteredReceiver(sys.argv[1], ["a"], delivery=sys.argv[2], name="victim") as receiver:
    print("attached", flush=True)
    for message in receiver:
        pass
"""


@pytest.fixture
def channel() -> Channel:
    return free_channel()


@contextlib.contextmanager
def filter_process(channel: Channel, port: int, *options: str) -> Iterator[tuple[Running, str]]:
    with running("filter", str(channel), "--port", str(port), *options) as process:
        process.wait_for_output('"control_port"')
        yield process, json.loads(process.out.splitlines()[0])["url"]


def names(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/status", timeout=PATIENCE_SECONDS) as answer:
        return sorted(each["name"].rpartition("-")[0] for each in json.load(answer)["applications"])


class Got:
    """The messages that a receiver has returned so far."""

    def __init__(self, receiver: FilteredReceiver) -> None:
        self._receiver = receiver
        self.payloads: list[bytes] = []
        self.receipts: list[LossReceipt] = []

    def look(self, timeout: float = 0.01) -> None:
        for each in self._receiver.receive(timeout):
            if isinstance(each, Deliver | DeliverBatch):
                self.payloads += [bytes(message.payload) for message in each.messages]
            elif isinstance(each, LossReceipt):
                self.receipts.append(each)

    def wait_for(self, payload: bytes) -> None:
        def is_there() -> bool:
            self.look()
            return payload in self.payloads[-10:]

        wait_until(is_there, f"{payload!r}")


@pytest.mark.spec("FILT-6")
@pytest.mark.parametrize("delivery", ["unicast", "ring"])
def test_an_application_that_is_killed_is_detached_and_others_notice_nothing(channel: Channel, delivery: str) -> None:
    (port,) = free_ports(1)
    place = f"127.0.0.1:{port}"
    with (
        filter_process(channel, port) as (_, url),
        MulticastPublisher(channel, config=QUICK) as publisher,
        FilteredReceiver(place, ["a"], name="survivor") as receiver,
    ):
        got = Got(receiver)
        victim = subprocess.Popen(
            [sys.executable, "-c", APPLICATION, place, delivery], stdout=subprocess.PIPE, text=True
        )
        with victim:
            assert victim.stdout is not None
            assert victim.stdout.readline() == "attached\n"
            wait_until(lambda: len(names(url)) == 2, "both")
            publish(publisher, "a", count=200)
            kill(victim.pid)
            victim.wait()
        publish(publisher, "a", count=200, start=200)
        got.wait_for(b"a 399")
        wait_until(lambda: len(names(url)) == 1, "the end of the victim")
        publish(publisher, "a", count=200, start=400)
        got.wait_for(b"a 599")
        assert got.payloads == expected("a", 600)
        assert not got.receipts


def test_applications_go_on_with_a_filter_that_was_killed_and_started_again(channel: Channel) -> None:
    (port,) = free_ports(1)
    with MulticastPublisher(channel, config=QUICK) as publisher, contextlib.ExitStack() as stack:
        with filter_process(channel, port) as (process, _):
            receiver = stack.enter_context(FilteredReceiver(f"127.0.0.1:{port}", ["a"]))
            got = Got(receiver)
            publish(publisher, "a", count=100)
            got.wait_for(b"a 99")
            kill(process.pid)
            process.end()
        publish(publisher, "a", count=100, start=100)  # while nobody listens
        with filter_process(channel, port):

            def is_back() -> bool:
                got.look()
                return receiver.is_attached

            wait_until(is_back, "the filter")
            publish(publisher, "a", count=100, start=200)
            got.wait_for(b"a 299")
        assert got.payloads[:100] == expected("a", 100)
        assert got.payloads[-100:] == expected("a", 100, 200)
        # messages sent in the meantime have arrived or are reported; no loss is silent
        assert len(got.payloads) == 300 or got.receipts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_filter_that_is_told_to_end_does_so_in_order(channel: Channel, number: signal.Signals) -> None:
    (port,) = free_ports(1)
    with filter_process(channel, port) as (process, _), Application(port, delivery="ring") as application:
        application.want("a")
        process.process.send_signal(number)
        assert process.end() == 0
        wait_until(lambda: isinstance(application.told[-1], control.Refused), "the refusal before the disconnect")
        last = application.told[-1]
        assert isinstance(last, control.Refused)
        assert last.code == control.RefusalCode.STOPPING


def test_a_filter_of_a_plant(channel: Channel, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "groups.toml").write_text(f'version = 1\nport = {channel.port}\ndefault = "{channel.group}"\n')
    plant = tmp_path / "plant.toml"
    plant.write_text(f'name = "p"\n[[filter]]\nname = "edge"\nmap = "groups.toml"\n[filter.control]\nport = {port}\n')
    checked = subprocess.run(
        [sys.executable, "-c", "from penstock.cli.main import main; main()", "up", str(plant), "--check"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert checked.stdout == "edge: filter\n"
    commands = (("filter", "--config", str(plant), "--name", "edge"), ("node", str(plant), "edge"), ("up", str(plant)))
    for command in commands:
        with (
            running(*command) as process,
            MulticastPublisher(channel, config=QUICK) as publisher,
        ):
            process.wait_for_output(str(port))
            with Application(port) as application:
                application.want("a.>")
                publish(publisher, "a.b", count=5)
                assert application.wait_for(5) == expected("a.b", 5)
            assert process.interrupt() == 0, process.err


# With an administration server


@pytest.mark.spec("ADM-5", "ADM-7", "ADM-8")
def test_tokens_say_what_is_had_and_revocation_ends_it(channel: Channel, tmp_path: Path) -> None:
    with (
        AdminServer(config(tmp_path)) as server,
        penstock.connect(server.url, credentials=credentials("quill")) as quill,
        quill.publisher(channel, name="quotes", config=QUICK) as publisher,
    ):
        admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
        state = str(tmp_path / "state")
        with (
            filter_here(channels=(str(channel),), admin=admin, state_directory=state) as beside,
            AdminClient.connect(server.url, credentials("alice")) as alice,
            AdminClient.connect(server.url, credentials("bob")) as bob,
            AdminClient.connect(server.url, credentials("root")) as root,
        ):
            wait_until(lambda: beside.module.status().is_in_touch, "the administration server")
            with Application(beside.port) as nobody:
                assert isinstance(nobody.registered, control.Refused)
                assert nobody.registered.code == control.RefusalCode.TOKEN
            first, second = alice.subscribe(["md.us.>"]), bob.subscribe(["md.us.eq.*.quote"])
            with (
                Application(beside.port, "alice", token=first.token) as hers,
                Application(beside.port, "bob", token=second.token) as his,
            ):
                assert isinstance(hers.want("md.>"), control.Holds)  # narrowed to what is granted
                refusal = his.want("md.us.fut.>")
                assert isinstance(refusal, control.Refused)
                assert refusal.code == control.RefusalCode.ENTITLEMENT
                assert isinstance(his.want(">"), control.Holds)
                publish(publisher, "md.us.eq.A.quote", "md.us.fut.B", "md.eu.C", count=10)
                assert sorted({each.split()[0] for each in hers.wait_for(20)}) == [b"md.us.eq.A.quote", b"md.us.fut.B"]
                assert {each.split()[0] for each in his.wait_for(10)} == {b"md.us.eq.A.quote"}
                fresh = alice.renew(first.subscription_id)
                assert isinstance(hers.ask(lambda n: control.RenewToken(n, fresh.token)), control.Holds)
                root.revoke("alice", "left the firm")
                wait_until(lambda: isinstance(hers.told[-1], control.Refused), "the revocation")
                last = hers.told[-1]
                assert isinstance(last, control.Refused)
                assert (last.code, "left the firm" in last.reason) == (control.RefusalCode.REVOKED, True)
                wait_until(lambda: beside.application_names() == ["bob"], "the disconnect of alice")
                publish(publisher, "md.us.eq.A.quote", count=10, start=10)
                assert len(his.wait_for(20)) == 20
                assert len(hers.payloads) == 20
            server.stop()
            with Application(beside.port, "bob", token=second.token) as his:  # the server is gone, the token is good
                assert isinstance(his.registered, control.Registered)
            with Application(beside.port, "alice", token=fresh.token) as hers:
                assert isinstance(hers.registered, control.Refused)
                assert hers.registered.code == control.RefusalCode.REVOKED
        with filter_here(channels=(str(channel),), admin=admin, state_directory=state) as again:
            with Application(again.port, "alice", token=fresh.token) as hers:
                assert isinstance(hers.registered, control.Refused)
                assert hers.registered.code == control.RefusalCode.REVOKED
            with Application(again.port, "bob", token=second.token) as his:
                assert isinstance(his.registered, control.Registered)


def test_an_application_is_refused_for_good(channel: Channel, tmp_path: Path) -> None:
    with AdminServer(config(tmp_path)) as server:
        admin = AdminAccess(url=server.url, credentials=str(credentials_file(tmp_path, "filter")))
        with filter_here(channels=(str(channel),), admin=admin) as beside:
            wait_until(lambda: beside.module.status().is_in_touch, "the administration server")
            with pytest.raises(RefusedError):
                FilteredReceiver(f"127.0.0.1:{beside.port}", ["a"], timeout=PATIENCE_SECONDS)


def test_no_descriptor_is_left_behind_by_killed_applications(channel: Channel) -> None:
    (port,) = free_ports(1)
    with filter_process(channel, port) as (process, url):

        def descriptors() -> int:
            return len(os.listdir(f"/proc/{process.pid}/fd"))

        found = []
        for _ in range(3):
            victim = subprocess.Popen(
                [sys.executable, "-c", APPLICATION, f"127.0.0.1:{port}", "ring"], stdout=subprocess.PIPE, text=True
            )
            with victim:
                assert victim.stdout is not None
                assert victim.stdout.readline() == "attached\n"
                kill(victim.pid)
                victim.wait()
            wait_until(lambda: not names(url), "its end")
            found.append(descriptors())
            wait_until(lambda: descriptors() <= found[0], "its descriptors")  # the first run keeps some open
