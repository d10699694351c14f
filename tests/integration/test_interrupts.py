"""Ctrl-C at any moment ends a command without a traceback, also while its modules are imported."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from children import child_environment
from command_here import run_here
from first_plant_kit import free_first_port
from penstock.net.udp import free_channel
from waiting import PATIENCE_SECONDS

PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)  # the interpreter's own start is not the command's
print("begun", flush=True)
from penstock.__main__ import main
main()
"""
MOMENTS = (0.0, 0.05, 0.2, 0.4, 0.8, 1.6, 3.2)
"""Seconds from the start of the command. What the command does then depends on the machine; any of them is good."""


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("interrupted") / "plant.d"
    made = run_here("init", directory, "--minimal", "--port", free_first_port())
    assert made.returncode == 0, made.stderr
    return directory


@pytest.fixture(scope="module")
def silent() -> Iterator[str]:
    """The address of a server that accepts connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("what", ["help", "channel", "connected", "pub", "queue", "up", "top"])
def test_an_interrupt_at_any_moment_leaves_no_traceback(what: str, plant: Path, silent: str) -> None:
    words = {
        "help": ["--help"],
        "channel": ["sub", str(free_channel())],
        "connected": ["sub", "--connect", f"penstock://{silent}", "--credentials", str(plant / "alice.toml"), "a.b"],
        "pub": ["pub", str(free_channel())],
        "queue": ["queue", "list", silent],
        "up": ["up", str(plant / "plant.toml")],
        "top": ["top", str(plant / "plant.toml"), "--once"],
    }[what]
    for moment in MOMENTS:
        command = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=child_environment(),
        )  # fmt: skip
        with command:
            assert command.stdout is not None
            assert command.stdout.readline() == b"begun\n"
            time.sleep(moment)
            command.send_signal(signal.SIGINT)
            out, err = command.communicate(timeout=PATIENCE_SECONDS)
        for text in (out, err):
            assert b"Traceback" not in text, (moment, text.decode())
            assert b"ignored in" not in text, (moment, text.decode())
        assert command.returncode in (-signal.SIGINT, 128 + signal.SIGINT, 0, 1), (moment, command.returncode)
