"""A plant on this machine: starts every node of plant.toml in its own process, in order, watches them, and stops them.

with RunningPlant(Plant.load(path)) as running:
    running.start()
    while ...: running.poll(0.25)
    running.stop()
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from penstock.admin.config import AdminConfig
from penstock.assured.core.status import RouterStatus, WitnessStatus
from penstock.assured.node_config import RouterNodeConfig, WitnessConfig
from penstock.base.errors import HandoverError, NotFoundError, RequestError
from penstock.base.log import logger
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.status import AdapterStatus
from penstock.filter.core.status import FilterStatus
from penstock.filter.module_config import FilterModuleConfig
from penstock.node.console_config import ConsoleConfig
from penstock.node.document import NodeConfig
from penstock.node.member import Member
from penstock.node.orders import Order, OrderListener
from penstock.node.plant import Plant
from penstock.node.restarts import STEADY_SECONDS, Restarts
from penstock.node.roles import (
    IMPLEMENTATIONS,
    AdapterReport,
    AgentReport,
    DistributionReport,
    FilterReport,
    PlayerReport,
    Ready,
    RouterReport,
    Told,
    WitnessReport,
)
from penstock.node.supervisor import Supervisor
from penstock.node.template import Template
from penstock.plant.config import MuxConfig, PlantConfig
from penstock.plant.core.status import NodeStatus
from penstock.plant.edge_config import EdgeConfig
from penstock.tree.config import AgentConfig
from penstock.tree.core.status import AgentStatus

START_SECONDS = 180.0
"""Time limit for the start of a node."""

ROUTING: tuple[type[NodeConfig], ...] = (RouterNodeConfig, WitnessConfig)

MAIN = "penstock.node.roles:main"
MAINS: dict[type[NodeConfig], str] = {ConsoleConfig: "penstock.web.live.process:main"}
"""Entry points of nodes that run in a package above this one."""

log = logger("node")


class NodeProcess:
    """One node: its current process, and its last reports."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.where = ""
        self.status: AdapterStatus | None = None
        self.filtering: FilterStatus | None = None
        self.distributing: NodeStatus | None = None
        self.agent: AgentStatus | None = None
        self.router: RouterStatus | None = None
        self.witness: WitnessStatus | None = None
        self.sent = 0
        self.is_ready = False
        self.is_wanted = True
        self.starts = 0
        self.restarts = Restarts()
        self.restart_at: float | None = None
        self.fault = ""
        """The reason of its last death."""
        self.is_kill_ordered = False
        """True from an ordered kill until the process has ended."""
        self.member: Member | None = None

    def take(self, line: bytes) -> None:
        match msgspec.json.decode(line, type=Told):
            case Ready(where):
                self.where, self.is_ready = where, True
                self.restarts.ready(time.monotonic())
            case AdapterReport(status):
                self.status = status
            case FilterReport(status):
                self.filtering = status
            case DistributionReport(status):
                self.distributing = status
            case AgentReport(status):
                self.agent = status
            case RouterReport(status):
                self.router = status
            case WitnessReport(status):
                self.witness = status
            case PlayerReport(sent):
                self.sent = sent


class RunningPlant:
    """Runs all nodes of a plant. A node that dies is restarted after a pause (node/restarts.py); an adapter returns
    as a backup."""

    def __init__(self, plant: Plant, *, log_level: str = "INFO", logs: Path | None = None) -> None:
        """Logs of the nodes go to files in the existing directory `logs`; by default, to standard error."""
        self.plant = plant
        self.nodes = {name: NodeProcess(name) for name in plant.nodes}
        self.supervisor = Supervisor(self._ended, logs=logs)
        kinds = {type(config) for config in plant.nodes.values()}
        mains = {MAINS.get(kind, MAIN).partition(":")[0] for kind in kinds}
        self._template = Template(sorted(mains | {IMPLEMENTATIONS[kind] for kind in kinds & set(IMPLEMENTATIONS)}))
        self.ordered: set[str] = set()
        """Nodes that were killed on purpose."""
        self._log_level = log_level

    def start(self, is_over: Callable[[], bool] = lambda: False, *, players: bool = True) -> bool:
        """Start administration servers, then adapters, then all nodes that distribute (these find each other), then
        players. Each group starts when the previous one is ready; return True if all are. Unwanted nodes are left
        out."""
        self.plant.make_secrets()
        steps: list[tuple[type[NodeConfig], ...]] = [
            (AdminConfig,),
            (AdapterConfig,),
            (FilterModuleConfig, PlantConfig, MuxConfig, EdgeConfig, AgentConfig, *ROUTING, ConsoleConfig),
            *([(PlayerConfig,)] if players else []),
        ]
        return all(self.start_nodes(self._named(*kinds), is_over) for kinds in steps)

    def start_players(self, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Start the players that start() left out."""
        return self.start_nodes(self._named(PlayerConfig), is_over)

    def start_nodes(self, names: Iterable[str], is_over: Callable[[], bool] = lambda: False) -> bool:
        """Start these nodes, as far as they are wanted. Return True if all are ready."""
        nodes = [self.nodes[name] for name in names if self.nodes[name].is_wanted]
        for node in nodes:
            self._start(node)
        has_ended = self.supervisor.wait(
            lambda: all(node.is_ready for node in nodes) or any(node.fault for node in nodes), START_SECONDS, is_over
        )
        if not has_ended and not is_over():
            for node in nodes:
                node.fault = node.fault or ("" if node.is_ready else f"{node.name} did not become ready")
        return all(node.is_ready for node in nodes)

    def poll(self, timeout: float) -> None:
        """Process the nodes' reports, waiting at most this many seconds, and restart the nodes that are due."""
        due = [node.restart_at for node in self.nodes.values() if node.restart_at is not None and node.is_wanted]
        self.supervisor.poll(max(0.0, min([timeout, *(each - time.monotonic() for each in due)])))
        now = time.monotonic()
        for node in self.nodes.values():
            if node.restart_at is not None and now >= node.restart_at and node.is_wanted:
                self._start(node)
            if node.restarts.became_steady(now):
                self.plant.pages.clear_failing(node.name)
                log.warning("node_steady", node=node.name, seconds=STEADY_SECONDS)

    @property
    def template_pid(self) -> int:
        """The process that nodes are copies of; 0 before the first node."""
        return self._template.pid

    def adapters(self, feed: str = "") -> list[NodeProcess]:
        """The adapters of one feed, or of all feeds."""
        return [
            self.nodes[name]
            for name, config in self.plant.nodes.items()
            if isinstance(config, AdapterConfig) and feed in ("", config.feed)
        ]

    def active(self, feed: str = "") -> NodeProcess | None:
        """The adapter that reports to be active, with the highest term."""
        active = [each for each in self.adapters(feed) if each.member and each.status and each.status.role == "active"]
        return max(active, key=lambda each: each.status.term if each.status else 0, default=None)

    def _named(self, *kinds: type[NodeConfig]) -> list[str]:
        return [name for name, config in self.plant.nodes.items() if type(config) in kinds]

    @property
    def faults(self) -> list[str]:
        """The faults of nodes, except those that were killed on purpose."""
        return [node.fault for node in self.nodes.values() if node.fault and node.name not in self.ordered]

    def kill(self, name: str) -> str:
        """Kill a node with kill -9 and return a description. The node is restarted after a pause."""
        node = self.nodes.get(name)
        if node is None or node.member is None:
            raise NotFoundError(f"{name[:64]!r} is not running on this machine")
        self.ordered.add(name)
        node.is_kill_ordered = True
        node.member.kill()
        return f"killed process {node.member.pid}"

    def promote(self, name: str) -> str:
        """Make a backup adapter the active one of its feed: the active one is killed, and the backup takes over."""
        node = self.nodes.get(name)
        config = self.plant.nodes.get(name)
        if node is None or node.status is None or not isinstance(config, AdapterConfig):
            raise NotFoundError(f"{name[:64]!r} is not an adapter running on this machine")
        active = self.active(config.feed)
        if active is node:
            raise RequestError(f"{name} is already active")
        if not node.status.is_synchronised:
            raise RequestError(
                f"{name} is not synchronised", hint="wait until it is synchronised: a takeover now would lose messages"
            )
        if active is None:
            raise RequestError("no adapter is active now", hint="try again later")
        return f"{active.name}: {self.kill(active.name)}"

    def _carry_out(self, order: Order) -> str:
        match order.what:
            case "kill":
                return self.kill(order.node)
            case "promote":
                return self.promote(order.node)
            case "look":
                return f"{sum(node.member is not None for node in self.nodes.values())} nodes run"

    def stop(self, tell: Callable[[str], None] = lambda _: None) -> None:
        """Shut down every node, in the reverse order of starting. `tell` is called with each name first."""
        for node in self.nodes.values():
            node.is_wanted = False
        for name in reversed(self.nodes):
            if self.nodes[name].member is not None:
                tell(name)
            self.stop_node(name)
        for name in self.nodes:
            self.plant.pages.forget(name)
            self.plant.pages.clear_failing(name)

    def stop_node(self, name: str) -> None:
        """Shut down one node; it is not restarted."""
        node = self.nodes[name]
        node.is_wanted = False
        if node.member is not None and self.supervisor.stop([node.member]):
            node.fault = f"{name} did not shut down and was killed"

    def __enter__(self) -> Self:
        self.supervisor.__enter__()
        try:
            self.supervisor.watch(OrderListener(self.plant.path, self._carry_out))
        except HandoverError as error:
            log.warning("no_orders", why=str(error))  # the plant runs without accepting orders
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.supervisor.__exit__(kind, error, at)
        self._template.close()

    def _start(self, node: NodeProcess) -> None:
        node.restart_at = None
        node.is_ready = False
        node.status = node.filtering = node.distributing = node.agent = node.router = node.witness = None
        node.starts += 1
        node.restarts.started()
        arguments = [str(self.plant.path.absolute()), node.name, self._log_level]
        main = MAINS.get(type(self.plant.node(node.name)), MAIN)
        node.member = self.supervisor.start(node.name, main, arguments, node.take, template=self._template)
        log.info("node_started", node=node.name, pid=node.member.pid, starts=node.starts)

    def _ended(self, member: Member) -> None:
        node = next((each for each in self.nodes.values() if each.member is member), None)
        if node is None:
            return
        node.member = None
        if not node.is_wanted:
            node.fault = member.fault
            return
        node.fault = member.fault or f"{node.name} ended"
        node.restart_at = node.restarts.died(time.monotonic(), is_ordered=node.is_kill_ordered)
        node.is_kill_ordered = False
        deaths, pause_s = node.restarts.deaths, node.restarts.pause_s
        log.warning("node_died", node=node.name, what=node.fault, deaths=deaths, restart_in_s=pause_s)
        if node.restarts.is_failing and node.restart_at is not None:
            why = node.restarts.describe()
            self.plant.pages.note_failing(node.name, f"{why}; {node.fault}")
            log.error("node_failing", node=node.name, why=why, hint="see the log of the node")
