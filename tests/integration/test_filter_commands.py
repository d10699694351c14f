"""`penstock pub` and `penstock sub` with a filter module; and publishers' ids on the command line."""

import signal
from pathlib import Path

import pytest

from admin_kit import config, credentials_file
from integration.command_kit import kill, running
from integration.filter_kit import filter_here
from integration.test_pub_sub import messages, pub, quote
from penstock.admin.live.driver import AdminServer
from penstock.net.udp import free_channel, free_ports


@pytest.mark.spec("FILT-6", "FILT-11")
@pytest.mark.parametrize("delivery", ["unicast", "ring", "shared"])
def test_a_filter_chooses_what_is_shown(delivery: str) -> None:
    channel = str(free_channel())
    with filter_here(channels=[channel]) as module:
        place = f"127.0.0.1:{module.port}"
        options = ["--filter", place, "--delivery", delivery, "--where", "bid_price > 10", "--json", "--count", "2"]
        with running("sub", *options, "md.*.quote", "!md.Z.>") as sub:
            sub.wait_for_output("listening")
            lines = "".join(quote(*each) for each in (("A", "12"), ("B", "5"), ("Z", "99"), ("C", "11")))
            done = pub(channel, lines, "--filter", place)
            assert done.returncode == 0, done.stderr
            assert sub.end() == 0, sub.err
            assert [each["topic"] for each in messages(sub)] == ["md.A.quote", "md.C.quote"]
            assert "2 of 2 messages shown" in sub.err  # the others did not even arrive
            assert "0 packets lost" in sub.err


def test_a_filter_that_is_not_there_is_said(tmp_path: Path) -> None:
    with running("sub", "--filter", f"127.0.0.1:{free_ports(1)[0]}", "a.b") as sub:
        assert sub.end() == 1
        assert "error [unreachable]" in sub.err
    with running("sub", "--filter", "none", "--delivery", "pigeon", "a.b") as sub:
        assert sub.end() == 1
        assert "pigeon" in sub.err


def test_an_application_survives_a_filter_that_is_killed() -> None:
    channel, (port,) = str(free_channel()), free_ports(1)
    command = ["filter", channel, "--port", str(port)]
    with running(*command) as first:
        first.wait_for_output("filter_started")
        with running("sub", "--filter", f"127.0.0.1:{port}", "a.>") as sub:
            sub.wait_for_output("listening")
            pub(channel, "one\n", "--raw", "--topic", "a.b")
            sub.wait_for_output("one")
            kill(first.pid)
            first.end()
            with running(*command) as second:
                second.wait_for_output("application_attached")
                pub(channel, "two\n", "--raw", "--topic", "a.b")
                sub.wait_for_output("two")
                sub.process.send_signal(signal.SIGINT)
                assert sub.end() == 0


@pytest.mark.spec("FILT-15")
def test_publisher_ids_come_from_a_file_or_from_the_administration_server(tmp_path: Path) -> None:
    channel = str(free_channel())
    with AdminServer(config(tmp_path)) as server, running("sub", channel, "--json") as sub:
        sub.wait_for_output("listening")
        epochs = str(tmp_path / "epochs")
        for number in range(2):
            done = pub(channel, f"{number}\n", "--raw", "--topic", "t", "--id", "7", "--epochs", epochs)
            assert done.returncode == 0, done.stderr
        quill = ["--connect", server.url, "--credentials", str(credentials_file(tmp_path, "quill")), "--name", "desk"]
        for number in range(2, 4):
            done = pub(channel, f"{number}\n", "--raw", "--topic", "t", *quill)
            assert done.returncode == 0, done.stderr
        sub.process.send_signal(signal.SIGINT)
        assert sub.end() == 0
        first, second, third, fourth = (each["publisher"] for each in messages(sub))
        assert first == second == f"{7:016x}"
        assert third == fourth != first
        assert '"epoch":2' in sub.out
    for wrong in (["--id", "7"], ["--name", "desk"], [*quill, "--id", "7", "--epochs", epochs]):
        assert "error [config]" in pub(channel, "x\n", "--raw", "--topic", "t", *wrong).stderr
