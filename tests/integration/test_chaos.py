"""Random kill -9 and SIGSTOP of every node of a plant: clients on every path lose nothing without a receipt, receive
nothing twice, and receive again after each fault. The longest silence per path and fault is printed with its goal
(`PENSTOCK_CHAOS_SECONDS=600 make soak ARGS="-s -k chaos"`): after a kill, the restart of the node plus one second;
after a pause, its length plus half a second. Silences are reported, not asserted: they depend on the machine."""

import os
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from integration import chaos_clients
from integration.chaos_clients import NODES, Account
from penstock.bench.failover.clients import ADAPTERS, Ports
from penstock.bench.failover.nodes import TARGETS, plant_document
from penstock.bench.transports import other_process
from penstock.feed.adapter_config import AdapterConfig
from penstock.net.udp import free_channel, free_ports
from penstock.node.plant import Plant
from penstock.node.running import RunningPlant
from waiting import PATIENCE_SECONDS

EXCHANGE = "exchange"
"""Exempt from faults: without the exchange, adapters have nothing to send."""

SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "600"))
SEED = int(os.environ.get("PENSTOCK_CHAOS_SEED", "1"))
KILL_GOAL_SECONDS = 1.0
PAUSE_GOAL_SECONDS = 0.5
SETTLE_SECONDS = 1.5
"""Clients are observed for this long after the end of a fault."""

POLL_SECONDS = 0.02
DOUBLE_SHARE = 0.25
"""Share of the episodes in which two nodes fail at once."""


class Fault(msgspec.Struct):
    node: str
    kind: str
    pause_s: float = 0.0
    restart_s: float = 0.0
    """Time from the kill until the node was ready again."""

    @property
    def goal_s(self) -> float:
        return self.restart_s + KILL_GOAL_SECONDS if self.kind == "kill" else self.pause_s + PAUSE_GOAL_SECONDS

    def __str__(self) -> str:
        return f"{self.kind} {self.node}"


class Episode(msgspec.Struct):
    faults: list[Fault]
    silences_s: dict[str, float]

    def goal_s(self, path: str) -> float:
        """Faults of nodes that the path does not depend on do not interrupt it."""
        return sum(each.goal_s for each in self.faults if each.node in NODES[path]) or PAUSE_GOAL_SECONDS


class Chaos:
    """A plant with clients in another process."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        ports, channel = Ports(*free_ports(len(Ports.__struct_fields__))), free_channel()
        document = directory / "plant.toml"
        document.write_text(plant_document(TARGETS, ports, str(channel)))
        plant = Plant.load(document)
        adapters = [config.publish.channel for config in map(plant.node, ADAPTERS) if isinstance(config, AdapterConfig)]
        self.running = stack.enter_context(RunningPlant(plant, log_level="ERROR"))
        assert self.running.start(), self.running.faults
        self._clients = stack.enter_context(other_process(chaos_clients.run, ports, channel, adapters))
        assert self._answer() == "listening"

    @property
    def nodes(self) -> list[str]:
        return [name for name in self.running.nodes if name != EXCHANGE]

    def fail(self, faults: list[Fault]) -> Episode:
        """Inflict these faults at once; return when the nodes are back and every path has received a message."""
        since = time.monotonic()
        for fault in faults:
            self._inflict(fault)
        pending = list(faults)
        while pending:
            self.running.poll(POLL_SECONDS)
            elapsed = time.monotonic() - since
            assert elapsed < PATIENCE_SECONDS, f"not restarted: {pending}"
            pending = [each for each in pending if not self._is_over(each, elapsed)]
        back_at = time.monotonic()
        while time.monotonic() < back_at + SETTLE_SECONDS:
            self.running.poll(POLL_SECONDS)
        self._clients.send((since, back_at))
        return Episode(faults, self._answer())

    def finish(self) -> dict[str, Account]:
        self._clients.send(None)
        accounts: dict[str, Account] = self._answer()
        self.running.stop()
        return accounts

    def _answer(self) -> Any:
        deadline = time.monotonic() + 2 * PATIENCE_SECONDS
        connection: Connection = self._clients
        while not connection.poll():
            assert time.monotonic() < deadline, "the clients do not answer"
            self.running.poll(POLL_SECONDS)
        return connection.recv()

    def _inflict(self, fault: Fault) -> None:
        node = self.running.nodes[fault.node]
        assert node.member is not None
        if fault.kind == "kill":
            node.is_ready = False
            self.running.kill(fault.node)
        else:
            os.kill(node.member.pid, signal.SIGSTOP)

    def _is_over(self, fault: Fault, elapsed: float) -> bool:
        node = self.running.nodes[fault.node]
        if fault.kind == "kill":
            fault.restart_s = elapsed
            return node.is_ready
        if elapsed < fault.pause_s:
            return False
        fault.pause_s = elapsed
        assert node.member is not None
        os.kill(node.member.pid, signal.SIGCONT)
        return True


def _table(episodes: list[Episode]) -> Iterator[str]:
    """Per path and fault, the episode with the longest silence in proportion to its goal; a star marks those beyond."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for episode in episodes:
        fault = " + ".join(sorted(map(str, episode.faults)))
        for path, silence_s in episode.silences_s.items():
            found[path, fault].append((silence_s, episode.goal_s(path)))
    for (path, fault), silences in sorted(found.items()):
        silence_s, goal_s = max(silences, key=lambda each: each[0] / each[1])
        star = "*" if silence_s > goal_s else " "
        yield f"{star} {path:9} {fault:40} {silence_s:7.3f} s, goal {goal_s:6.3f} s, {len(silences)} episodes"


def _judge(episodes: list[Episode], accounts: dict[str, Account]) -> None:
    lines = [*_table(episodes), *(f"{path}: {account}" for path, account in accounts.items())]
    sys.stdout.write("\n".join(lines) + "\n")
    assert not {path: account.examples for path, account in accounts.items() if account.violations}
    assert all(account.messages for account in accounts.values())


def _random_fault(chance: random.Random, node: str) -> Fault:
    if chance.random() < 0.5:
        return Fault(node, "kill")
    return Fault(node, "pause", chance.uniform(2.0, 5.0))


@pytest.mark.soak
@pytest.mark.spec("SYNC-1", "TREE-11", "REPL-3")
def test_chaos_loses_nothing_without_a_receipt(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    episodes: list[Episode] = []
    with ExitStack() as stack:
        chaos = Chaos(tmp_path, stack)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            nodes = chance.sample(chaos.nodes, 2 if chance.random() < DOUBLE_SHARE else 1)
            episodes.append(chaos.fail([_random_fault(chance, node) for node in nodes]))
        accounts = chaos.finish()
    _judge(episodes, accounts)


@pytest.mark.spec("SYNC-1", "TREE-11", "REPL-3")
def test_every_path_recovers_from_a_kill_and_a_pause(tmp_path: Path) -> None:
    with ExitStack() as stack:
        chaos = Chaos(tmp_path, stack)
        episodes = [
            chaos.fail([Fault("edge", "kill"), Fault("root", "pause", 2.0)]),
            chaos.fail([Fault("filter", "kill"), Fault("router-a", "pause", 2.0)]),
            chaos.fail([Fault("adapter-a", "kill"), Fault("ticker-plant", "pause", 2.0)]),
        ]
        accounts = chaos.finish()
    _judge(episodes, accounts)
