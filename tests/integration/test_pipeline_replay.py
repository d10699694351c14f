"""`penstock pipeline replay` to subscribers that are processes of their own."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from integration.command_kit import completed, running
from penstock.middleware import Merged, MergedBatch, ReceiverConfig, StreamStarted
from penstock.middleware.live.merging_receiver import MergingReceiver
from penstock.net.udp import free_channel
from penstock.wire import decode
from unit.recordings_kit import Day, write_archive, write_journal

START_NS = 1_704_200_000 * 10**9


def replay(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return completed("pipeline", "replay", *arguments)


@pytest.mark.spec("PIPE-9")
def test_a_replay_reaches_those_who_ask_for_it_and_nobody_else(tmp_path: Path) -> None:
    """Messages, topics, ORIGINs and records are replayed as published; receivers of live messages receive none of
    them."""
    day = Day(400)
    write_archive(tmp_path / "archive", [day])
    channel = free_channel()
    expected = [(each.topic, each.extensions[4:], each.payload) for each in day.published()]
    with running("sub", str(channel), "--json", "--seconds", "60") as live:
        live.wait_for_output("listening")
        with MergingReceiver.on([channel], config=ReceiverConfig(accept="replay", join="start")) as receiver:
            done = replay(str(tmp_path / "archive"), "--speed", "max", "--to-channel", str(channel))
            assert done.returncode == 0, done.stderr
            assert f"{len(expected):,} messages of" in done.stderr
            got: list[tuple[str, bytes, bytes]] = []
            told: list[object] = []
            while received := receiver.receive(1.0):
                for each in received:
                    if isinstance(each, Merged | MergedBatch):
                        got += [(m.topic, bytes(m.extensions[1]), bytes(m.payload)) for m in each.messages]
                    else:
                        told.append(each)
        assert got == expected
        started = [each for each in told if isinstance(each, StreamStarted)]
        assert [each.is_replay for each in started] == [True]
        assert started[0].epoch > 1_600_000_000
        assert live.interrupt() == 1, "it has shown no message"
        assert live.out == ""
        assert "0 of 0 messages shown" in live.err
        assert "replay" in live.err  # refused, and counted


@pytest.mark.spec("PIPE-9")
def test_a_stretch_of_a_journal_is_played_at_its_pace(tmp_path: Path) -> None:
    day = Day(400)
    packets = day.packets(1)
    write_journal(tmp_path / "journal", packets, start_ns=START_NS, step_ns=10**7)
    channel = str(free_channel())
    with running("sub", channel, "--json", "--accept", "replay", "--seconds", "60") as sub:
        sub.wait_for_output("listening")
        done = replay(
            str(tmp_path / "journal"), "--from", "2024-01-02T12:53:20", "--to", "2024-01-02T12:53:20.2",
            "--speed", "2", "--to-channel", channel, "--topics", "md.us.eq.*.quote",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        sub.wait_for_output("ended")
        assert sub.interrupt() == 0
        lines = [json.loads(line) for line in sub.out.splitlines()]
    store = [each for packet in packets[:20] for each in decode(packet)]
    quotes = [each.topic for each in store if each.topic.endswith(".quote")]
    assert [each["topic"] for each in lines if "topic" in each] == quotes
    assert [each["started"]["is_replay"] for each in lines if "started" in each] == [True]
    assert f"{len(quotes):,} messages of 2024-01-02T12:53:20.0" in done.stderr
    seconds = float(re.search(r"packets, ([0-9.]+) s", done.stderr)[1])  # type: ignore[index]
    assert seconds >= 0.05  # 190 ms of the past at twice the speed, and never faster


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--speed", "fast"], "is not a speed"),
        (["--from", "yesterday"], "is not a time"),
        (["--from", "2024-01-03", "--to", "2024-01-02"], "is not before"),
        (["--to-channel", "nowhere"], "is not a channel"),
    ],
)
def test_a_replay_that_cannot_be_is_refused(tmp_path: Path, arguments: list[str], what: str) -> None:
    write_archive(tmp_path, [Day(50)])
    done = replay(str(tmp_path), *arguments)
    assert done.returncode == 1
    assert what in done.stderr
