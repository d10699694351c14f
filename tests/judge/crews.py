"""Processes of clients (clients.py), which can be killed and restarted; each run writes a separate history."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import msgspec

from integration.live_kit import Entered
from judge.clients import Orders
from waiting import PATIENCE_SECONDS

TESTS = Path(__file__).parents[1]


class Crew:
    """`orders` names the clients; on another host, if `entered` leads there."""

    def __init__(self, orders: Orders, directory: Path, entered: Entered = contextlib.nullcontext) -> None:
        self.name = orders.name
        self.histories: list[Path] = []
        self._orders = orders
        self._directory = directory
        self._entered = entered
        self._is_killed = self._is_draining = False
        self.start()

    def start(self) -> None:
        life = len(self.histories) + 1
        history = self._directory / f"history-{self.name}-{life}"
        history.touch()
        self.histories.append(history)
        orders = msgspec.structs.replace(self._orders, life=life, history=str(history), is_draining=self._is_draining)
        self._errors = self._directory / f"errors-{self.name}-{life}"
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "judge.clients", msgspec.json.encode(orders).decode()]
        with self._entered(), self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=errors, env={**os.environ, "PYTHONPATH": path}
            )
        self._is_killed = False

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._is_killed = True
        self._process.kill()
        self._end()

    def drain(self) -> None:
        """From now on every delivery is acknowledged."""
        self._is_draining = True
        self._tell("drain")

    def finish(self) -> None:
        self._tell("finish")
        assert self._end() == 0, self._errors.read_text()

    def check(self) -> None:
        """Fails if a client met an unexpected result."""
        if not self._is_killed and self._process.poll() is not None:
            raise AssertionError(f"{self.name} ended: {self._errors.read_text()}")

    def close(self) -> None:
        """Kill the process, whatever the result: no client of it continues."""
        self._process.kill()
        self._end()

    def _end(self) -> int:
        """The exit status of the ended process."""
        status = self._process.wait(PATIENCE_SECONDS)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        return status

    def _tell(self, word: str) -> None:
        self.check()
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
