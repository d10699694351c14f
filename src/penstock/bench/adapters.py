"""Feed adapters as real processes, and a subscriber that merges their streams: for benches, demos and tests."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ProcessError
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.status import AdapterStatus

COMMAND = (sys.executable, "-c", "from penstock.cli.main import main; main()")
START_SECONDS = 120.0
STOP_SECONDS = 15.0
LOOK_SECONDS = 0.1
"""Polling interval: short enough for the measurement, long enough not to disturb it."""
PR_SET_PDEATHSIG = 1


class NodeProcess:
    """One node run by `penstock` in the foreground, which can be killed and restarted."""

    def __init__(self, name: str, command: tuple[str, ...], config: Config, directory: Path) -> None:
        self.name = name
        self._command = command
        self._file = directory / f"{name}.toml"
        self._file.write_text(to_toml(msgspec.to_builtins(config)))
        self._log = directory / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Start the node and return when it is listening."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*COMMAND, *self._command, "--config", str(self._file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ProcessError(f"{self.name} did not start", where=str(self._log), hint=self.log[-2_000:])
        self.facts = msgspec.json.decode(line)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text()

    def page(self, path: str) -> bytes:
        with urllib.request.urlopen(self.facts["url"] + path, timeout=5) as answer:
            content: bytes = answer.read()
            return content

    def kill(self) -> int:
        """Kill the process with kill -9; return the monotonic time just before."""
        now_ns = time.monotonic_ns()
        os.kill(self.pid, signal.SIGKILL)
        self._reap()
        return now_ns

    def stop(self) -> int:
        """Stop the process with SIGTERM; return its exit status."""
        if self._process is None:
            return 0
        if self.is_running:
            self._process.send_signal(signal.SIGTERM)
        return self._reap()

    def _reap(self) -> int:
        assert self._process is not None
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise ProcessError(f"{self.name} did not stop", where=str(self._log)) from None
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
        return status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessError):
            self.stop()


class AdapterProcess(NodeProcess):
    """One `penstock adapter`."""

    def __init__(self, config: AdapterConfig, directory: Path) -> None:
        super().__init__(config.name, ("adapter",), config, directory)
        self.config = config

    def status(self) -> AdapterStatus:
        return msgspec.json.decode(self.page("/status"), type=AdapterStatus)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Poll a condition until it is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise ProcessError(f"timeout after {seconds:g} s waiting for: {what}")
        time.sleep(LOOK_SECONDS)


def is_synchronised_pair(active: AdapterProcess, backup: AdapterProcess) -> bool:
    first, second = active.status(), backup.status()
    return first.role == "active" and second.role == "backup" and second.term == first.term and second.is_synchronised


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def to_toml(value: dict[str, Any]) -> str:
    """Format nested tables as a TOML document."""
    return "\n".join(f"{key} = {_literal(each)}" for key, each in value.items() if each is not None) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_literal(each)}" for key, each in value.items() if each is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    return msgspec.json.encode(value).decode()
