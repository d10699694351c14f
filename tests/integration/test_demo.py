"""`penstock demo`: real processes, and their end in every way there is."""

import re
import urllib.request

import pytest

from integration.command_kit import Running, is_alive, kill, running, wait_for

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


def test_ctrl_c_ends_it_cleanly_and_metrics_are_served_meanwhile() -> None:
    with running("demo", "--metrics-port", "0", *RATE) as demo:
        demo.wait_for_output("url=http")
        found = re.search(r"url=(http://127\.0\.0\.1:\d+)", demo.err)
        assert found
        url = found[1]
        wait_for(lambda: re.search(r"\npenstock_packets_sent_total{.*} [1-9]", fetch(f"{url}/metrics")), "metrics")
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
        wait_for(lambda: len(demo.children()) == 3, "the processes")
        children = demo.children()
        assert demo.interrupt() == 0, demo.err
        wait_for(lambda: not any(map(is_alive, children)), "the end of all processes")
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
        wait_for(lambda: not any(map(is_alive, children)), "the end of all processes")


def test_two_demos_do_not_hear_each_other() -> None:
    options = ("demo", "--seconds", "1", "--subscribers", "1", *RATE)
    with running(*options) as first, running(*options) as second:
        for demo in (first, second):
            assert demo.end() == 0, demo.err
            assert delivered(demo) == [published(demo)]
