"""Agents as processes: signals, exit statuses, and nothing left behind."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from children import child_environment

AGENT = """
import asyncio, sys
from penstock.base import log
from penstock.net import ControlServer, connect_control, run_agent
from unit.net_kit import ECHO, Say, echo

log.configure()

async def main(stop):
    async with ControlServer(ECHO, echo, node="server") as server:
        async with await connect_control(ECHO, "127.0.0.1", server.port, node="client") as connection:
            await connection.send(Say("hello"))
            assert await connection.receive() == Say("hello")
            print(server.port, flush=True)
            await stop.wait()
            END

sys.exit(run_agent(main, name="test", stop_seconds=STOP_SECONDS))
"""


@contextmanager
def agent(end: str = "pass", stop_seconds: float = 30) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    script = AGENT.replace("END", end).replace("STOP_SECONDS", str(stop_seconds))
    environment = child_environment()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-X", "dev", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, int(line)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.spec("OPS-8")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_an_agent_in_order_and_leaves_nothing(number: signal.Signals) -> None:
    with agent() as (process, port):
        children = subprocess.run(["ps", "--ppid", str(process.pid)], capture_output=True, text=True)
        assert str(process.pid) not in children.stdout
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert "agent_stopping" in errors
        assert "status=0" in errors
        assert "ResourceWarning" not in errors
        assert "Error" not in errors
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.spec("OPS-8")
def test_a_second_signal_does_not_wait() -> None:
    with agent("print('stopping', flush=True); await asyncio.sleep(1_000)", stop_seconds=600) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.stdout is not None
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGINT


@pytest.mark.spec("OPS-8")
def test_the_time_to_stop_is_bounded() -> None:
    with agent("await asyncio.sleep(1_000)", stop_seconds=0.05) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
        assert "agent_did_not_stop_in_order" in errors


def test_an_error_is_told_and_has_a_status() -> None:
    with agent("raise ValueError('bad end')") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "agent_failed" in errors
        assert "bad end" in errors
