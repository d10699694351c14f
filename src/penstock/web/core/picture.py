"""The operators' picture as one document: the rows of `penstock top`, and the links between nodes. No I/O."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from penstock.admin.config import AdminConfig
from penstock.assured.core.status import RouterStatus, WitnessStatus
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.status import AdapterStatus
from penstock.filter.module_config import FilterModuleConfig
from penstock.node.document import NodeConfig
from penstock.node.plant import Plant
from penstock.plant.config import MuxConfig, PlantConfig
from penstock.plant.core.status import NodeStatus
from penstock.plant.edge_config import EdgeConfig
from penstock.top.core.picture import WELL, ConsumerRow, EndpointRow, LossRow, NodeRow, Picture, State, StreamRow
from penstock.top.core.reading import Reading
from penstock.tree.config import AgentConfig
from penstock.tree.core.status import AgentStatus

ROWS_MAX = 500
"""Maximum number of streams, losses, consumers and endpoints that are sent; `counts` has the totals."""

NO_ROLE = "needs the role administrator"
ROOTS = ("root", "fenced")

LinkKind: TypeAlias = Literal["feed", "records", "tree", "peer", "standby"]
LinkState: TypeAlias = Literal["up", "down", "unknown"]

R = TypeVar("R")


class ShownNode(NodeRow, frozen=True, kw_only=True):
    group: str = ""
    """The feed of an adapter, the tree of an agent."""

    place: str = ""
    """The role within its group: active or backup, root or leaf, …"""

    parent: str = ""
    actions: tuple[str, ...] = ()
    """Actions that the client can take with the node now."""

    refused_actions: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Actions that nodes of this kind have, but that would be refused now, with the reason."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A flow of data from one node to another."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    kind: LinkKind
    state: LinkState
    per_s: float | None = None


class PictureDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="picture"):
    number: int
    plant: str
    time_ms: float
    age_s: float
    interval_s: float
    is_well: bool
    nodes: list[ShownNode]
    links: list[Link]
    streams: list[StreamRow]
    losses: list[LossRow]
    consumers: list[ConsumerRow]
    endpoints: list[EndpointRow]
    counts: dict[str, int]


class Topology:
    """The links between the nodes of a plant, from its document and from the nodes' reports."""

    def __init__(self, plant: Plant) -> None:
        self._plant = plant

    def document(
        self, picture: Picture, readings: Sequence[Reading], *, number: int, time_ms: float, interval_s: float
    ) -> PictureDocument:
        said = {reading.place.name: reading for reading in readings}
        nodes = [self._shown(row, said.get(row.node)) for row in picture.nodes]
        links = self._links({node.node: node for node in nodes}, said)
        counts = {
            "nodes": len(nodes),
            "links": len(links),
            "streams": len(picture.streams),
            "losses": len(picture.losses),
            "consumers": len(picture.consumers),
            "endpoints": len(picture.endpoints),
        }
        return PictureDocument(
            number=number,
            plant=self._plant.name,
            time_ms=time_ms,
            age_s=0.0,
            interval_s=interval_s,
            is_well=all(node.state in WELL for node in nodes),
            nodes=nodes,
            links=links,
            streams=picture.streams[:ROWS_MAX],
            losses=picture.losses[:ROWS_MAX],
            consumers=picture.consumers[:ROWS_MAX],
            endpoints=picture.endpoints[:ROWS_MAX],
            counts=counts,
        )

    def _shown(self, row: NodeRow, reading: Reading | None) -> ShownNode:
        config = self._plant.nodes.get(row.node)
        group = place = parent = ""
        if isinstance(config, AdapterConfig):
            group = config.feed
        elif isinstance(config, AgentConfig):
            group = config.tree
        match None if reading is None else reading.status:
            case AdapterStatus() as status:
                place = status.role
            case RouterStatus() as status:
                pair = "" if status.replication is None else f", {status.replication.state}"
                place = f"{status.role}, epoch {status.epoch}{pair}"
            case WitnessStatus() as status:
                place = f"epoch {status.epoch}, held by {status.holder or 'nobody'}"
            case AgentStatus() as status:
                place, parent = place_in_tree(status), status.parent
            case _ if isinstance(config, AdminConfig) and reading is not None:
                place = reading.detail
        return ShownNode(**msgspec.structs.asdict(row), group=group, place=place, parent=parent)

    # Links

    def _links(self, nodes: Mapping[str, ShownNode], said: Mapping[str, Reading]) -> list[Link]:
        links = list[Link]()
        for name, config in self._plant.nodes.items():
            target = nodes.get(name)
            if target is not None:
                for source, kind in self._sources(config, said.get(name)):
                    links.append(
                        Link(
                            source=source,
                            target=name,
                            kind=kind,
                            state=_state(nodes.get(source), target, said.get(name)),
                            per_s=target.in_per_s if kind == "records" else _given(nodes.get(source)),
                        )
                    )
        return links

    def _sources(self, config: NodeConfig, said: Reading | None) -> list[tuple[str, LinkKind]]:
        """Return the sources of a node in the plant's document; agents report their current parent and peers."""
        match config:
            case AgentConfig():
                feeds: list[tuple[str, LinkKind]] = []
                if config.subscribe:
                    feeds = [(name, "feed") for name in self._named(AdapterConfig)]
                return [*feeds, *self._above(config, said)]
            case AdapterConfig():
                return [(name, "feed") for name in self._named(PlayerConfig)]
            case MuxConfig():
                above = self._at_port(config.upstream.port)
                return [(above, "records")] if above else []
            case FilterModuleConfig() | PlantConfig():
                return [(name, "feed") for name in self._named(AdapterConfig)]
            case _:
                return []

    def _above(self, config: AgentConfig, said: Reading | None) -> list[tuple[str, LinkKind]]:
        if said is None or not isinstance(said.status, AgentStatus):
            return []
        kind: LinkKind = "standby" if said.status.state == "standby" else "tree"
        parent: list[tuple[str, LinkKind]] = [(said.status.parent, kind)] if said.status.parent else []
        # only the first of two peers by name reports the link
        peers = [each.name for each in said.status.links if each.role == "peer" and each.name < config.name]
        return [*parent, *((name, "peer") for name in peers)]

    def _named(self, kind: type[NodeConfig]) -> list[str]:
        return [name for name, config in self._plant.nodes.items() if type(config) is kind]

    def _at_port(self, port: int) -> str:
        """The distribution node at this port."""
        for name, config in self._plant.nodes.items():
            if isinstance(config, PlantConfig | MuxConfig | EdgeConfig) and config.control.port == port:
                return name
        return ""


class Operator(msgspec.Struct, frozen=True):
    """What a client may do, as far as the console knows it before the client tries."""

    client: str
    is_administrator: bool
    can_control: bool
    """Whether the console reaches the supervisor of the plant."""

    accepted_by: Callable[[str], bool] = lambda agent: True
    """Whether an agent accepts orders of this client."""


def with_actions(node: ShownNode, operator: Operator) -> ShownNode:
    """Add the actions of a node: those that the client can take now, and the reasons against the others."""
    reasons = {"kill": _against_kill(node, operator)}
    if node.role == "adapter":
        reasons["promote"] = _against_kill(node, operator) or _against_promoting_adapter(node)
    if node.role == "agent" and node.place == "standby":
        reasons["promote"] = _against_order(node, node.node, operator)
    elif node.role == "agent" and node.place not in ROOTS:
        reasons["move"] = reasons["return"] = _against_order(node, node.parent, operator)
    return msgspec.structs.replace(
        node,
        actions=tuple(action for action, reason in reasons.items() if not reason),
        refused_actions={action: reason for action, reason in reasons.items() if reason},
    )


def _against_kill(node: ShownNode, operator: Operator) -> str:
    if not operator.is_administrator:
        return NO_ROLE
    if not operator.can_control:
        return "the plant was not started by `penstock up` or `penstock demo` here, by the user of the console"
    return f"{node.node} does not answer" if node.state == State.UNREACHABLE else ""


def _against_promoting_adapter(node: ShownNode) -> str:
    if node.place == "active":
        return f"{node.node} is the active adapter"
    return "" if node.place == "backup" and node.state == State.UP else f"{node.node} is not synchronised"


def _against_order(node: ShownNode, agent: str, operator: Operator) -> str:
    """The reason against an order to `agent` that concerns this node."""
    if not operator.is_administrator:
        return NO_ROLE
    if node.state not in (State.UP, State.DEGRADED):
        return f"{node.node} is {node.state}"
    if not agent:
        return f"{node.node} has no parent at present"
    return (
        "" if operator.accepted_by(agent) else f"{agent} accepts no orders of {operator.client} (its key `operators`)"
    )


def _given(node: ShownNode | None) -> float | None:
    return None if node is None else node.out_per_s


def _state(source: ShownNode | None, target: ShownNode, said: Reading | None) -> LinkState:
    if source is not None and source.state in (State.UNREACHABLE, State.FAILED):
        return "down"
    if said is None or said.status is None or target.age_s is not None:
        return "down" if target.state in (State.UNREACHABLE, State.FAILED) else "unknown"
    is_fed = target.state in WELL
    match said.status:
        case NodeStatus() as status:
            is_fed = status.is_fed
        case AgentStatus() as agent:
            is_fed = agent.is_rooted
    return "up" if is_fed else "down"


def place_in_tree(status: AgentStatus) -> str:
    """Return the role of an agent: root, standby, fenced, leaf or intermediate."""
    if status.state != "agent":
        return status.state
    has_agents = any(link.role in ("agent", "standby") for link in status.links)
    return "intermediate" if has_agents else "leaf"
