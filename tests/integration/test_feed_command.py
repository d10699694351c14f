"""`penstock feed` as users run it."""

import json
import random
import re
import signal
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from command_here import run_here
from penstock.net.udp import free_channel, host_socket

COMMAND = [sys.executable, "-c", "from penstock.cli.main import main; main()", "feed"]


def run(*arguments: object, status: int = 0) -> str:
    done = run_here("feed", *arguments)
    assert done.returncode == status, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["day.itch", "day.itch.gz"])
def test_a_generated_file_is_what_info_says_and_a_cut_one_is_damaged(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    said = run("generate", file, "--messages", 2_000, "--symbols", 5, "--seed", 3)
    report = json.loads(run("info", file, "--json"))
    (stream,) = report["streams"]
    assert f"{stream['messages']:,} messages" in said
    assert sum(stream["types"].values()) == stream["messages"]
    assert len(stream["types"]) == 23
    file.write_bytes(file.read_bytes()[:-9])
    told = run("info", file, status=1)
    assert "damaged at" in told
    assert "truncated" in told


def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path) -> None:
    done = run_here("feed", "info", tmp_path / "none")
    assert done.returncode == 1
    assert done.stderr.startswith("error [config]: ")
    assert "Traceback" not in done.stderr


def test_datagrams_that_are_no_feed_are_counted_and_no_success() -> None:
    channel, is_over = free_channel(), threading.Event()
    noise = random.Random(5)

    def disturb() -> None:
        with closing(host_socket("127.0.0.1")) as sender:
            while not is_over.wait(0.01):
                sender.sendto(noise.randbytes(noise.randrange(100)), (channel.group, channel.port))

    disturbing = threading.Thread(target=disturb)
    disturbing.start()
    try:
        said = run("listen", f"{channel.group}:{channel.port}", "--seconds", 2, status=1)
    finally:
        is_over.set()
        disturbing.join()
    assert said.startswith("0 messages in ")
    assert re.search(r"; [\d,]+ datagrams dropped: .*truncated [\d,]+", said)


def test_a_file_played_over_soup_is_listened_to_and_ctrl_c_ends_the_player(tmp_path: Path) -> None:
    file = tmp_path / "day.itch"
    run("generate", file, "--messages", 1_000, "--symbols", 5)
    messages = json.loads(run("info", file, "--json"))["streams"][0]["messages"]
    playing = subprocess.Popen(
        [*COMMAND, "play", "--soup", "--file", str(file), "--speed", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert playing.stderr is not None
    try:
        found = None
        while found is None:
            line = playing.stderr.readline()
            assert line, "the player ended"
            found = re.search(r"logins are accepted at (127\.0\.0\.1:\d+)", line)
        said = run("listen", "--server", found[1], "--from-start")
        assert said.startswith(f"{messages:,} messages in ")
        assert " 0 lost" in said
        playing.send_signal(signal.SIGINT)
        told, _ = playing.communicate(timeout=120)
        assert playing.returncode == 0
        assert f"{messages:,} messages made available, 1 logins" in told
    finally:
        if playing.poll() is None:
            playing.kill()
        playing.communicate()
