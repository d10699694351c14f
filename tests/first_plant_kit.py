"""A plant made by `penstock init`, on free ports."""

import contextlib
import re
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from command_here import run_here
from integration.command_kit import Running, running
from penstock.demo.ports import FIRST_DEFAULT, PORTS, Ports
from penstock.engine.client.discovery import VARIABLE as NODE_VARIABLE
from penstock.filter.client.discovery import VARIABLE as FILTER_VARIABLE

DIRECTORY = "plant.d"
STARTING_SECONDS = 180.0
"""Sixteen processes start one after the other; a few seconds on an idle machine."""


class FirstPlant(NamedTuple):
    home: Path
    """The working directory of its user: the plant is in plant.d."""

    first: int
    told: str
    """The output of `penstock init`."""

    up: Running

    @property
    def variables(self) -> dict[str, str]:
        """The environment in which applications find this plant's nodes instead of the documented ports."""
        ports = Ports.documented(self.first)
        return {NODE_VARIABLE: f"127.0.0.1:{ports.nodes[1]}", FILTER_VARIABLE: f"127.0.0.1:{ports.filter}"}

    def moved(self, text: str) -> str:
        """A documented command or program, with the ports of this plant in place of the documented ones."""
        return re.sub(rf"(?<![\d.])(?<!239\.255\.74\.1:){FIRST_DEFAULT // 100}(\d\d)(?!\d)", self._moved, text)

    def _moved(self, found: re.Match[str]) -> str:
        return str(self.first + int(found[1]))


def free_first_port() -> int:
    """The first of a range in which every port of a plant is free; other tests use ports above this range."""
    while True:
        first = 2_000 + PORTS * secrets.randbelow(95)
        if first != FIRST_DEFAULT and all(map(_is_free, _numbers(Ports.documented(first)))):
            return first


def _numbers(ports: Ports) -> Iterator[int]:
    for name in Ports.__struct_fields__:
        value = getattr(ports, name)
        for each in value if isinstance(value, list) else [value]:
            yield each if isinstance(each, int) else each.port


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


@contextlib.contextmanager
def first_plant(home: Path) -> Iterator[FirstPlant]:
    """The plant, running, with a synchronised feed."""
    first = free_first_port()
    made = run_here("init", home / DIRECTORY, "--port", first)
    assert made.returncode == 0, made.stderr
    with running("up", str(home / DIRECTORY / "plant.toml")) as up:
        up.wait_for_output("the plant runs", STARTING_SECONDS)
        up.wait_for_output("backup, synchronised")
        yield FirstPlant(home, first, made.stdout, up)
        assert up.interrupt() == 0, up.err
