"""The role of a plant's process: administration server, adapter, filter module, distribution node, agent, message
router, witness or player.

Only the process with a role imports the role's implementation.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias

import msgspec

from penstock.admin.config import AdminConfig
from penstock.assured.core.status import RouterStatus, WitnessStatus
from penstock.assured.node_config import RouterNodeConfig, WitnessConfig
from penstock.base.errors import LocalProtocolError, PenstockError
from penstock.base.files import share_with_group
from penstock.base.log import configure
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.status import AdapterStatus
from penstock.filter.core.status import FilterStatus
from penstock.filter.module_config import FilterModuleConfig
from penstock.net.live.event_loop import run_agent
from penstock.node.document import NodeConfig, name_of
from penstock.node.plant import Plant
from penstock.node.process import TELL_SECONDS, Supervised
from penstock.plant.config import AnyNodeConfig, MuxConfig, PlantConfig
from penstock.plant.core.status import NodeStatus
from penstock.plant.edge_config import EdgeConfig
from penstock.runtime.running import SWITCH_SECONDS, L, run_live
from penstock.tree.config import AgentConfig
from penstock.tree.core.status import AgentStatus

if TYPE_CHECKING:
    from penstock.admin.live.driver import LiveAdministration
    from penstock.assured.live.driver import LiveRouter
    from penstock.assured.live.witness import LiveWitness
    from penstock.feed.live.driver import LiveAdapter
    from penstock.feed.live.play.player_node import LivePlayer
    from penstock.filter.live.driver import LiveFilter
    from penstock.plant.live.driver import LiveNode
    from penstock.tree.live.driver import LiveAgent

REPORTED_CONSUMERS_MAX = 64
"""Maximum number of consumers whose records a node reports to its supervisor; the node's page has more."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The process is in service."""

    where: str
    """Its address, in readable form."""

    page: str = ""
    """The address of its page, if it has one."""


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
    """Number of messages, each counted once."""


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


class Role(NamedTuple, Generic[L]):
    """How to run a node of one kind."""

    make: Callable[[], L]
    """Creates the driver; called in the thread of the running loop."""

    ready: Callable[[L], Ready]
    report: Callable[[L], Told] | None = None
    """Makes a report, a few times per second, and once when the node has ended if `reports_end`."""

    on_hangup: Callable[[L], object] | None = None
    """Called on SIGHUP."""

    reports_end: bool = False


def run(config: NodeConfig, tell: Tell, supervised: Supervised | None = None, *, path: Path | None = None) -> int:
    """Run this node until Ctrl-C, SIGTERM or the supervisor's order; return the exit status. Consoles are run by
    their own package (penstock.web.live.process). `path` is the plant's document, for nodes that reload on SIGHUP."""
    role = role_of(config, path)
    return run_agent(lambda stop: _run_role(role, tell, heeding(stop, supervised)), name=name_of(config))


async def _run_role(role: Role[L], tell: Tell, stop: asyncio.Event) -> None:
    report = role.report

    async def repeat(live: L) -> None:
        assert report is not None
        while True:
            tell(report(live))
            await asyncio.sleep(TELL_SECONDS)

    def started(live: L) -> None:
        tell(role.ready(live))
        if report is not None:
            live.node.spawn(repeat(live))

    live = await run_live(role.make, stop, started=started, on_hangup=role.on_hangup)
    if report is not None and role.reports_end:
        tell(report(live))


def role_of(config: NodeConfig, path: Path | None) -> Role[Any]:
    for kind, role in ROLES.items():
        if isinstance(config, kind):
            return role(config, path)
    raise LocalProtocolError("consoles are run by penstock.web.live.process", where=name_of(config))


def noting(plant: Plant, name: str, tell: Tell) -> Tell:
    """Return a `tell` that also writes the address of the node's page into the plant's directory."""

    def told(what: Told) -> None:
        if isinstance(what, Ready) and what.page:
            plant.pages.note(name, what.page)
        tell(what)

    return told


def main() -> None:
    """Entry point of a supervised process."""
    run_supervised(lambda plant, name, tell, supervised: run(plant.node(name), tell, supervised, path=plant.path))


def run_supervised(run_node: Callable[[Plant, str, Tell, Supervised], int]) -> None:
    """Run the node of a supervised process. The arguments are the plant's document, the node's name and the log
    level."""
    path, name, level = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    configure(level=level)
    supervised = Supervised()
    try:
        plant = Plant.load(path)
        share_with_group(plant.files_group)
        os.chdir(path.parent)  # relative paths of the document start there
        sys.exit(run_node(plant, name, noting(plant, name, supervised.tell), supervised))
    except PenstockError as error:
        sys.stderr.write(f"error [{error.code}]: {error}\n")
        sys.exit(1)


def heeding(stop: asyncio.Event, supervised: Supervised | None) -> asyncio.Event:
    """Return the event, which the supervisor's order sets too."""
    if supervised is not None:
        loop = asyncio.get_running_loop()
        supervised.when("stop", lambda: loop.call_soon_threadsafe(stop.set))
    return stop


def _administration(config: AdminConfig, _: Path | None) -> "Role[LiveAdministration]":
    from penstock.admin.live.driver import LiveAdministration

    return Role(
        lambda: LiveAdministration(config),
        lambda live: Ready(live.url),
        on_hangup=LiveAdministration.try_reload_policy,
    )


def _adapter(config: AdapterConfig, _: Path | None) -> "Role[LiveAdapter]":
    from penstock.feed.live.driver import LiveAdapter

    return Role(
        lambda: LiveAdapter(config),
        lambda live: Ready(live.node.url, live.node.url),
        lambda live: AdapterReport(live.status()),
    )


def _filter(config: FilterModuleConfig, _: Path | None) -> "Role[LiveFilter]":
    from penstock.filter.live.driver import LiveFilter

    return Role(
        lambda: LiveFilter(config),
        lambda live: Ready(f"{config.control.host}:{live.control_port}", live.node.url),
        lambda live: FilterReport(live.status()),
        LiveFilter.reload_map,
    )


def _distribution(config: AnyNodeConfig, _: Path | None) -> "Role[LiveNode]":
    from penstock.plant.live.driver import LiveNode

    return Role(
        lambda: LiveNode(config),
        lambda live: Ready(f"{config.control.host}:{live.control_port}", live.node.url),
        lambda live: DistributionReport(live.status(REPORTED_CONSUMERS_MAX)),
        lambda live: live.reload_classes(),
    )


def _agent(config: AgentConfig, path: Path | None) -> "Role[LiveAgent]":
    from penstock.node.agents import live_agent, load_again, reload

    return Role(
        lambda: live_agent(config),
        lambda live: Ready(live.place, live.node.url),
        lambda live: AgentReport(live.status(REPORTED_CONSUMERS_MAX)),
        None if path is None else lambda live: reload(live, lambda: load_again(path, config.name)),
    )


def _router(config: RouterNodeConfig, _: Path | None) -> "Role[LiveRouter]":
    from penstock.assured.live.driver import LiveRouter

    sys.setswitchinterval(SWITCH_SECONDS)
    return Role(
        lambda: LiveRouter(config),
        lambda live: Ready(live.place, live.node.url),
        lambda live: RouterReport(live.status()),
    )


def _witness(config: WitnessConfig, _: Path | None) -> "Role[LiveWitness]":
    from penstock.assured.live.witness import LiveWitness

    return Role(
        lambda: LiveWitness(config),
        lambda live: Ready(live.place, live.node.url),
        lambda live: WitnessReport(live.status()),
    )


def _player(config: PlayerConfig, _: Path | None) -> "Role[LivePlayer]":
    from penstock.feed.live.play.player_node import LivePlayer

    return Role(
        lambda: LivePlayer(config),
        lambda live: Ready(live.place),
        lambda live: PlayerReport(live.sent),
        reports_end=True,
    )


ROLES: dict[type, Callable[[Any, Path | None], Role[Any]]] = {
    AdminConfig: _administration,
    AdapterConfig: _adapter,
    FilterModuleConfig: _filter,
    PlantConfig: _distribution,
    MuxConfig: _distribution,
    AgentConfig: _agent,
    RouterNodeConfig: _router,
    WitnessConfig: _witness,
    PlayerConfig: _player,
}

IMPLEMENTATIONS: dict[type[NodeConfig], str] = {
    AdminConfig: "penstock.admin.live.driver",
    AdapterConfig: "penstock.feed.live.driver",
    FilterModuleConfig: "penstock.filter.live.driver",
    PlantConfig: "penstock.plant.live.driver",
    MuxConfig: "penstock.plant.live.driver",
    EdgeConfig: "penstock.plant.live.driver",
    AgentConfig: "penstock.node.agents",
    RouterNodeConfig: "penstock.assured.live.driver",
    WitnessConfig: "penstock.assured.live.witness",
    PlayerConfig: "penstock.feed.live.play.player_node",
}
"""Modules of roles, which nodes of the plant share."""
