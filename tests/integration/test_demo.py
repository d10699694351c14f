"""`penstock demo`: real processes, and their end in every way there is."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import urllib.request

import pytest

from integration.command_kit import COMMAND, PATIENCE_SECONDS, Running, is_alive, kill, running
from penstock.middleware import PublisherConfig
from penstock.middleware.driver import MulticastPublisher
from penstock.net.udp import free_channel
from waiting import wait_until

RATE = ("--rate", "3000")


def published(command: Running) -> int:
    found = re.search(r"([\d,]+) messages published", command.out)
    assert found, command.out + command.err
    return number(found[1])


def delivered(command: Running) -> list[int]:
    return [number(each) for each in re.findall(r"subscriber-\d: ([\d,]+) delivered", command.out)]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_every_subscriber_gets_everything() -> None:
    with running("demo", "--seconds", "2", *RATE) as demo:
        assert demo.end() == 0, demo.err
        assert published(demo) > 0
        assert delivered(demo) == [published(demo)] * 2
        assert demo.out.count("(every message); 0 packets lost") == 2
        assert "from the intended send time" in demo.out
        assert demo.err == ""


def test_discarded_datagrams_are_repaired() -> None:
    with running("demo", "--seconds", "2", "--loss", "0.05", "--rate", "1000") as demo:
        assert demo.end() == 0, demo.err
        assert delivered(demo) == [published(demo)] * 2
        assert len(re.findall(r"[1-9]\d* datagrams discarded on purpose", demo.out)) == 2
        assert len(re.findall(r"[1-9][\d,]* NACKs sent, [1-9][\d,]* packets repaired; 0 packets lost", demo.out)) == 2


def test_a_stranger_on_the_channel_does_not_end_it() -> None:
    channel = free_channel()
    with running("demo", "--channel", str(channel), *RATE) as demo:
        wait_until(lambda: re.search(r"subscriber-1 +[1-9]|subscriber-1: [1-9]|delivered", demo.out), "the first line")
        with MulticastPublisher(channel, config=PublisherConfig(linger_ms=1)) as stranger:
            stranger.publish("a.stranger", b"says hello, and goodbye")
        seen = len(demo.out.splitlines())
        wait_until(lambda: len(demo.out.splitlines()) >= seen + 2, "two more lines")
        assert demo.interrupt() == 0, demo.err
        assert published(demo) > 0
        assert all(each >= published(demo) for each in delivered(demo))


def test_ctrl_c_ends_it_cleanly_and_metrics_are_served_meanwhile() -> None:
    with running("demo", "--metrics-port", "0", *RATE) as demo:
        demo.wait_for_output("url=http")
        found = re.search(r"url=(http://127\.0\.0\.1:\d+)", demo.err)
        assert found
        url = found[1]
        wait_until(lambda: re.search(r"\npenstock_packets_sent_total{.*} [1-9]", fetch(f"{url}/metrics")), "metrics")
        assert '"is_healthy":true' in fetch(f"{url}/health")
        children = demo.children()
        assert len(children) == 3
        assert demo.interrupt() == 0, demo.err
        assert delivered(demo) == [published(demo)] * 2
        assert not any(map(is_alive, children))
        assert "Traceback" not in demo.err


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def test_ctrl_c_while_it_starts_leaves_nothing() -> None:
    with running("demo") as demo:
        wait_until(lambda: len(demo.children()) == 3, "the processes")
        children = demo.children()
        assert demo.interrupt() == 0, demo.err
        wait_until(lambda: not any(map(is_alive, children)), "the end of all processes")
        assert "Traceback" not in demo.err


@pytest.mark.parametrize(("index", "name"), [(0, "subscriber-1"), (2, "publisher")])
def test_a_process_that_dies_is_noticed(index: int, name: str) -> None:
    with running("demo", "--seconds", "4", *RATE) as demo:
        demo.wait_for_output("published")  # the first line about a plant at work
        children = demo.children()
        kill(children[index])
        assert demo.end() == 1
        assert f"{name} was killed by SIGKILL" in demo.err
        assert not any(map(is_alive, children))
        if index == 0:
            assert delivered(demo)[1] == published(demo)


def test_nothing_outlives_a_supervisor_that_is_killed() -> None:
    with running("demo", *RATE) as demo:
        demo.wait_for_output("published")
        children = demo.children()
        assert len(children) == 3
        kill(demo.pid)
        wait_until(lambda: not any(map(is_alive, children)), "the end of all processes")


def test_two_demos_do_not_hear_each_other() -> None:
    options = ("demo", "--seconds", "1", "--subscribers", "1", *RATE)
    with running(*options) as first, running(*options) as second:
        for demo in (first, second):
            assert demo.end() == 0, demo.err
            assert delivered(demo) == [published(demo)]


def test_others_can_listen_to_the_channel() -> None:
    channel = str(free_channel())
    with running("sub", channel, "md.demo.>", "--json") as sub:
        sub.wait_for_output("listening")
        with running("demo", "--seconds", "1", "--subscribers", "1", "--channel", channel, *RATE) as demo:
            assert demo.end() == 0, demo.err
            total = published(demo)
        sub.wait_for_output('"cause":"goodbye"')
        assert sub.interrupt() == 0
        assert f"{total:,} of {total:,} messages shown" in sub.err


def test_a_terminal_shows_a_table_and_its_ctrl_c_is_for_the_supervisor() -> None:
    """On a terminal of its own, where Ctrl-C goes to every process in the foreground."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "140", "LINES": "40"}
    on_terminal = "import os, sys; os.login_tty(int(sys.argv[1])); os.execv(sys.argv[2], sys.argv[2:])"
    command = [sys.executable, "-c", on_terminal, str(slave), *COMMAND, "demo", *RATE]
    process = subprocess.Popen(command, pass_fds=[slave], env=environment)
    os.close(slave)
    output = b""
    try:
        with contextlib.suppress(OSError):  # how the end of a terminal shows
            while data := os.read(master, 65_536):
                output += data
                if b"subscriber-2" in output and b"\x03" not in output:
                    os.write(master, b"\x03")
                    output += b"\x03"
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    text = output.decode()
    for column in ("process", "msgs/s", "p50", "p99.9", "repairs", "lost"):
        assert column in text
    assert text.count("(every message); 0 packets lost") == 2
    assert "Traceback" not in text
