"""The operators' picture as one document: the rows of `penstock top`, and the links between nodes. No I/O."""

from collections.abc import Mapping, Sequence
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
    """Actions that an operator can take with the node now."""


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


def with_actions(node: ShownNode, *, can_control: bool) -> ShownNode:
    """Add the actions that an operator can take with the node now."""
    actions = []
    if can_control and node.state != State.UNREACHABLE:
        actions.append("kill")
        if node.role == "adapter" and node.place == "backup" and node.state == State.UP:
            actions.append("promote")
    if node.role == "agent" and node.state in (State.UP, State.DEGRADED):
        if node.place == "standby":
            actions.append("promote")
        elif node.parent:
            actions += ["move", "return"]
    return msgspec.structs.replace(node, actions=tuple(actions))


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
