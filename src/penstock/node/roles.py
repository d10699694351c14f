"""What a process of a plant does: it is an administration server, an adapter, a filter module, a node that distributes,
an agent of a tree, a message router, a witness, or a player.

What does one of these things is imported by the process that does it, and by no other.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.admin.config import AdminConfig
from penstock.assured.live.config import RouterNodeConfig
from penstock.assured.live.status import RouterStatus
from penstock.assured.live.witness import LiveWitness, WitnessConfig, WitnessStatus
from penstock.base.errors import LocalProtocolError, PenstockError
from penstock.base.files import share_with_group
from penstock.base.log import configure, logger
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.live.config import AdapterConfig
from penstock.feed.live.status import AdapterStatus
from penstock.filter.live.status import FilterStatus
from penstock.filter.module_config import FilterModuleConfig
from penstock.net.live.agent import run_agent
from penstock.node.console_config import ConsoleConfig
from penstock.node.document import NodeConfig
from penstock.node.plant import Plant
from penstock.node.process import TELL_SECONDS, Supervised
from penstock.plant.config import AnyNodeConfig, MuxConfig, PlantConfig
from penstock.plant.core.status import NodeStatus
from penstock.tree.config import AgentConfig
from penstock.tree.live.status import AgentStatus

if TYPE_CHECKING:
    from penstock.admin.live.driver import AdminServer

REPORTED_CONSUMERS_MAX = 64
"""Whose records a node tells its supervisor; its page has more."""

SWITCH_SECONDS = 0.0005
"""How long a router's loop and its disk's thread let each other wait for the interpreter."""

log = logger("node")


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process does what it is there for."""

    where: str
    """Its address, for people."""

    page: str = ""
    """Where it shows itself, if it does."""


class AdapterReport(msgspec.Struct, frozen=True, tag=True):
    status: AdapterStatus


class FilterReport(msgspec.Struct, frozen=True, tag=True):
    status: FilterStatus


class DistributionReport(msgspec.Struct, frozen=True, tag=True):
    status: NodeStatus


class AgentReport(msgspec.Struct, frozen=True, tag=True):
    status: AgentStatus


class RouterReport(msgspec.Struct, frozen=True, tag=True):
    status: RouterStatus


class WitnessReport(msgspec.Struct, frozen=True, tag=True):
    status: WitnessStatus


class PlayerReport(msgspec.Struct, frozen=True, tag=True):
    sent: int
    """Messages, each counted once."""


Told: TypeAlias = (
    Ready
    | AdapterReport
    | FilterReport
    | DistributionReport
    | AgentReport
    | RouterReport
    | WitnessReport
    | PlayerReport
)
Tell: TypeAlias = Callable[[Told], object]


def run(config: NodeConfig, tell: Tell, supervised: Supervised | None = None, *, path: Path | None = None) -> int:
    """Be this node until Ctrl-C, SIGTERM or the supervisor's order; the exit status. A console is run by the package
    that it is in (penstock.web.process). `path` is the plant's document, for nodes that read it again on SIGHUP."""
    match config:
        case AdminConfig():
            return run_agent(lambda stop: _administrate(config, tell, heeding(stop, supervised)), name=config.node)
        case AdapterConfig():
            return run_agent(lambda stop: _adapt(config, tell, heeding(stop, supervised)), name=config.name)
        case FilterModuleConfig():
            return run_agent(lambda stop: _filter(config, tell, heeding(stop, supervised)), name=config.name)
        case PlantConfig() | MuxConfig():
            return run_agent(lambda stop: _distribute(config, tell, heeding(stop, supervised)), name=config.name)
        case AgentConfig():
            return run_agent(lambda stop: _agent(config, path, tell, heeding(stop, supervised)), name=config.name)
        case RouterNodeConfig():
            return run_agent(lambda stop: _route(config, tell, heeding(stop, supervised)), name=config.name)
        case WitnessConfig():
            return run_agent(lambda stop: _witness(config, tell, heeding(stop, supervised)), name=config.name)
        case PlayerConfig():
            return run_agent(lambda stop: _play(config, tell, heeding(stop, supervised)), name=config.name)
        case ConsoleConfig():
            raise LocalProtocolError("a console is not run here", where=config.name)


def noting(plant: Plant, name: str, tell: Tell) -> Tell:
    """Tell, and leave word in the plant's directory where the node shows itself."""

    def told(what: Told) -> None:
        if isinstance(what, Ready) and what.page:
            plant.pages.note(name, what.page)
        tell(what)

    return told


def main() -> None:
    """What a supervised process runs."""
    run_supervised(lambda plant, name, tell, supervised: run(plant.node(name), tell, supervised, path=plant.path))


def run_supervised(run_node: Callable[[Plant, str, Tell, Supervised], int]) -> None:
    """The process of a node: its arguments are the plant's document, the node's name and the log level."""
    path, name, level = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    configure(level=level)
    supervised = Supervised()
    try:
        plant = Plant.load(path)
        share_with_group(plant.files_group)
        os.chdir(path.parent)  # the document's paths begin there
        sys.exit(run_node(plant, name, noting(plant, name, supervised.tell), supervised))
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)


def heeding(stop: asyncio.Event, supervised: Supervised | None) -> asyncio.Event:
    """The same event, set by the supervisor's order too."""
    if supervised is not None:
        loop = asyncio.get_running_loop()
        supervised.when("stop", lambda: loop.call_soon_threadsafe(stop.set))
    return stop


async def _administrate(config: AdminConfig, tell: Tell, stop: asyncio.Event) -> None:
    from penstock.admin.live.driver import AdminServer

    server = AdminServer(config)
    await asyncio.to_thread(server.start)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, lambda: loop.run_in_executor(None, _reload_policy, server))
    try:
        tell(Ready(server.url))
        await stop.wait()
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        await asyncio.to_thread(server.stop)


def _reload_policy(server: "AdminServer") -> None:
    try:
        server.reload_policy()
    except PenstockError as error:
        log.error("policy_refused", code=error.code, what=str(error))  # the one before stays


async def _adapt(config: AdapterConfig, tell: Tell, stop: asyncio.Event) -> None:
    from penstock.feed.live.adapter import LiveAdapter

    adapter = LiveAdapter(config)
    await adapter.node.start()
    tell(Ready(adapter.node.url, adapter.node.url))
    with _reporting(lambda: tell(AdapterReport(adapter.status()))):
        await adapter.node.run(stop)


async def _filter(config: FilterModuleConfig, tell: Tell, stop: asyncio.Event) -> None:
    from penstock.filter.live.driver import LiveFilter

    module = LiveFilter(config)
    await module.node.start()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, module.reload_map)
    try:
        tell(Ready(f"{config.control.host}:{module.control_port}", module.node.url))
        with _reporting(lambda: tell(FilterReport(module.status()))):
            await module.node.run(stop)
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


async def _distribute(config: AnyNodeConfig, tell: Tell, stop: asyncio.Event) -> None:
    from penstock.plant.live.nodes import live_node

    node = live_node(config)
    await node.node.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, node.reload_classes)
    tell(Ready(f"{config.control.host}:{node.control_port}", node.node.url))
    with _reporting(lambda: tell(DistributionReport(node.status(REPORTED_CONSUMERS_MAX)))):
        await node.node.run(stop)


async def _agent(config: AgentConfig, path: Path | None, tell: Tell, stop: asyncio.Event) -> None:
    from penstock.node.agents import load_again, reload, running_agent

    async with running_agent(config) as agent:
        if path is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, reload, agent, lambda: load_again(path, config.name))
        tell(Ready(agent.place, agent.node.url))
        with _reporting(lambda: tell(AgentReport(agent.status(REPORTED_CONSUMERS_MAX)))):
            await agent.node.run(stop)


async def _route(config: RouterNodeConfig, tell: Tell, stop: asyncio.Event) -> None:
    from penstock.assured.live.driver import LiveRouter

    sys.setswitchinterval(SWITCH_SECONDS)
    router = LiveRouter(config)
    await router.node.start()
    tell(Ready(router.place, router.node.url))
    with _reporting(lambda: tell(RouterReport(router.status()))):
        await router.node.run(stop)


async def _witness(config: WitnessConfig, tell: Tell, stop: asyncio.Event) -> None:
    witness = LiveWitness(config)
    await witness.node.start()
    tell(Ready(witness.place, witness.node.url))
    with _reporting(lambda: tell(WitnessReport(witness.status()))):
        await witness.node.run(stop)


@contextlib.contextmanager
def _reporting(report: Callable[[], object]) -> Iterator[None]:
    """Have it called a few times per second meanwhile."""

    async def repeat() -> None:
        while True:
            report()
            await asyncio.sleep(TELL_SECONDS)

    repeating = asyncio.create_task(repeat())
    try:
        yield
    finally:
        repeating.cancel()


async def _play(config: PlayerConfig, tell: Tell, stop: asyncio.Event) -> None:
    from penstock.feed.live.mold_player import MoldPlayer

    with MoldPlayer(config) as player:
        tell(Ready(f"{config.host}:{player.request_port}"))
        is_over = threading.Event()
        playing = asyncio.create_task(asyncio.to_thread(player.run, is_over))
        try:
            while not stop.is_set() and not playing.done():
                tell(PlayerReport(player.next_sequence - 1))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), TELL_SECONDS)
        finally:
            is_over.set()
            await playing
        tell(PlayerReport(player.next_sequence - 1))
