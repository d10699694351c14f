"""Agents of a distribution tree in their own processes, for benches."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from penstock.bench.brokers import HOST
from penstock.bench.harness import cpu_seconds
from penstock.bench.transports import other_process
from penstock.bench.tree.party import STREAM, TOPICS, TREE_NAME
from penstock.tree.config import AgentAccess, AgentConfig, StreamConfig
from penstock.tree.live.driver import LiveAgent

ENOUGH = "enough"
ROOTED_SECONDS = 0.02
"""Polling interval for an agent's connection to the root."""


class RunningAgent:
    """A running agent: `place` is the address for children."""

    def __init__(self, place: str, process: int, orders: Connection) -> None:
        self.place = place
        self.process = process
        self._orders = orders

    def bytes_out(self, role: str) -> int:
        """Return the bytes sent to its children with this role."""
        self._orders.send(role)
        sent: int = self._orders.recv()
        return sent

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.process)

    def kill(self) -> None:
        os.kill(self.process, signal.SIGKILL)

    def finish(self) -> None:
        try:
            self._orders.send(ENOUGH)
        except BrokenPipeError:  # the process was killed
            return


@contextmanager
def running_agent(name: str, *, place: str = "", **values: Any) -> Iterator[RunningAgent]:
    port = int(place.rpartition(":")[2]) if place else 0
    config = AgentConfig(
        name=name, tree=TREE_NAME, control=AgentAccess(host=HOST, port=port), **{"role": "agent", **values}
    )
    with other_process(_serve, config) as orders:
        found, process = orders.recv()
        agent = RunningAgent(found, process, orders)
        try:
            yield agent
        finally:
            agent.finish()


@contextmanager
def running_root(folder: Path, **values: Any) -> Iterator[RunningAgent]:
    values = {"streams": (StreamConfig(name=STREAM, topics=TOPICS),), **values}
    with running_agent("root", role="root", state_directory=str(folder), **values) as root:
        yield root


@contextmanager
def running_chain(folder: Path, *names: str, **values: Any) -> Iterator[list[RunningAgent]]:
    """Run a root with these settings, and a chain of agents below it."""
    with ExitStack() as stack:
        agents = [stack.enter_context(running_root(folder, **values))]
        for name in names:
            agents.append(stack.enter_context(running_agent(name, parent=agents[-1].place)))
        yield agents


def _serve(config: AgentConfig, orders: Connection) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(config, orders))


async def _run(config: AgentConfig, orders: Connection) -> None:
    loop = asyncio.get_running_loop()
    agent = LiveAgent(config)
    await agent.node.start()
    stop = asyncio.Event()

    def hear() -> None:
        try:
            order = orders.recv()
        except EOFError:
            order = ENOUGH
        if order == ENOUGH:
            loop.remove_reader(orders.fileno())
            stop.set()
        else:
            orders.send(sum(link.bytes_out for link in agent.status().links if link.role == order))

    loop.add_reader(orders.fileno(), hear)
    while not agent.status(0).is_rooted:
        await asyncio.sleep(ROOTED_SECONDS)
    orders.send((agent.place, os.getpid()))
    await agent.node.run(stop)
