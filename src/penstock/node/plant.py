"""plant.toml: everything that runs in a plant, in one document.

    name = "example"

    [[administration]]                       # one server, or a primary and its standby
    name = "admin"
    policy = "policy.toml"

    [[feed]]
    name = "nasdaq"
    table = "itch"                           # what is said here holds for all adapters of the feed ...
    admin = { credentials = "feed.toml", topics = ["md.us.eq.>"] }

        [[feed.streams]]
        id = 1
        name = "totalview"
        lines = [{ group = "239.255.10.1", port = 26400 }, { group = "239.255.10.2", port = 26401 }]

        [[feed.adapter]]                     # ... unless one of them says otherwise
        name = "nasdaq-a"
        publish.channel = { group = "239.255.20.1", port = 17401 }
        peers.port = 17501

    [[filter]]                               # beside the applications of a host
    name = "host-1"
    admin = { credentials = "filter.toml" }

    [[plant]]                                # current records of everything, for those below
    name = "records"
    subscribe = ["md.us.eq.>"]
    admin = { credentials = "plant.toml" }

    [[mux]]                                  # beside the consumers of a host
    name = "host-1-mux"
    upstream = { port = 7410 }
    admin = { credentials = "mux.toml" }

    [[edge]]                                 # for screens and browsers, by TCP and WebSocket
    name = "screens"
    upstream = { port = 7411 }

    [[agent]]                                # of the distribution tree: its root
    name = "root"
    role = "root"
    streams = [{ name = "equities", topics = ["md.us.eq.>"], retain = "7d" }]
    subscribe = ["md.us.eq.>"]
    admin = { credentials = "root.toml" }

    [[agent]]                                # and one below it
    name = "leaf"
    parent = "127.0.0.1:7420"
    control.port = 7422
    admin = { credentials = "leaf.toml" }

    [[router]]                               # assured messages: stored, acknowledged, queued
    name = "orders"
    admin = { credentials = "router.toml" }
    endpoints = [{ name = "new-orders", wants = [{ topics = ["orders.new.>"] }] }]

    [[witness]]                              # votes on which router of a pair is the active one
    name = "witness"
    routers = ["orders", "orders-2"]

    [[console]]                              # all of it in the browser
    name = "console"

    [[player]]                               # plays an exchange, for trials
    name = "exchange"

Paths in it begin at the document's directory. An adapter's keys are those of feed.adapter_config.AdapterConfig, an
administration server's those of admin.config.AdminConfig, a filter's those of
filter.module_config.FilterModuleConfig, a plant's and a mux's those of plant.config, an edge's those of
plant.edge_config, an agent's those of tree.config, a router's those of assured.node, a witness's those of
assured.witnessing, a console's those of node.console_config; which adapters belong together, where each keeps its state
and where the administration servers are is filled in.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from penstock.admin.config import AdminConfig
from penstock.assured.live.config import RouterNodeConfig
from penstock.assured.live.witness import WitnessConfig
from penstock.base.config import Config, convert, load_toml
from penstock.base.errors import ConfigurationError
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.play.config import PlayerConfig
from penstock.filter.module_config import FilterModuleConfig
from penstock.net.core.control import Name
from penstock.node.console_config import ConsoleConfig
from penstock.node.link_secrets import make_secrets, with_feed_secret, with_secrets
from penstock.node.pages import Pages
from penstock.node.pairs import paired
from penstock.plant.config import MuxConfig, PlantConfig
from penstock.plant.edge_config import EdgeConfig
from penstock.tree.config import AgentConfig

NodeConfig: TypeAlias = (
    AdminConfig
    | AdapterConfig
    | FilterModuleConfig
    | PlantConfig
    | MuxConfig
    | EdgeConfig
    | AgentConfig
    | RouterNodeConfig
    | WitnessConfig
    | ConsoleConfig
    | PlayerConfig
)
Table: TypeAlias = dict[str, Any]

S = TypeVar("S", FilterModuleConfig, PlantConfig, MuxConfig, EdgeConfig, AgentConfig, RouterNodeConfig)


class FilesConfig(Config, frozen=True):
    """Who may read journals, captures, accounts and other state."""

    group: str = ""
    """A group of this machine whose members may; empty: only the user that runs the plant."""


class PlantDocument(Config, frozen=True):
    name: Name | None = None
    """It must have one; told when it has none, as every node in it has a name, too."""

    directory: str = "state"
    """Where nodes keep what they must not forget: a directory each."""

    files: FilesConfig = FilesConfig()
    administration: tuple[Table, ...] = ()
    feed: tuple[Table, ...] = ()
    filter: tuple[Table, ...] = ()
    plant: tuple[Table, ...] = ()
    mux: tuple[Table, ...] = ()
    edge: tuple[Table, ...] = ()
    agent: tuple[Table, ...] = ()
    router: tuple[Table, ...] = ()
    witness: tuple[Table, ...] = ()
    console: tuple[Table, ...] = ()
    player: tuple[Table, ...] = ()


class Plant:
    """A checked plant.toml: the configuration of every node, by name, in the order in which they start."""

    def __init__(
        self, path: Path, name: str, directory: str, nodes: Mapping[str, NodeConfig], files_group: str = ""
    ) -> None:
        self.path = path
        self.name = name
        self.files_group = files_group
        self.directory = directory
        self.nodes = dict(nodes)
        self.pages = Pages(path.parent.absolute() / directory / "pages")

    @staticmethod
    def load(path: Path) -> "Plant":
        document = load_toml(path, PlantDocument)
        where, nodes = str(path), _Nodes(str(path))
        if document.name is None:
            raise ConfigurationError("the plant has no name", where=where, hint='at the top: name = "example"')
        servers = [_admin(document, table, where) for table in document.administration]
        for config in servers:
            nodes.add(config.node, config)
        for number, table in enumerate(document.feed):
            for adapter in _adapters(document, table, servers, f"{where}: feed[{number}]"):
                nodes.add(adapter.name, adapter)
        for number, table in enumerate(document.filter):
            module = _served(document, table, servers, FilterModuleConfig, f"{where}: filter[{number}]")
            nodes.add(module.name, module)
        for number, table in enumerate(document.plant):
            plant = _served(document, table, servers, PlantConfig, f"{where}: plant[{number}]")
            if not plant.subscribe and not plant.channels:
                raise ConfigurationError(
                    f"{plant.name} has nothing to distribute",
                    where=f"{where}: plant[{number}]",
                    hint='name what it takes: subscribe = ["md.>"], or channels',
                )
            nodes.add(plant.name, plant)
        for number, table in enumerate(document.mux):
            mux = _served(document, table, servers, MuxConfig, f"{where}: mux[{number}]")
            nodes.add(mux.name, mux)
        for number, table in enumerate(document.edge):
            edge = _served(document, table, servers, EdgeConfig, f"{where}: edge[{number}]")
            nodes.add(edge.name, edge)
        for number, table in enumerate(document.agent):
            filled = {"state_directory": f"{document.directory}/{table.get('name', number)}", **table}
            agent = _served(document, filled, servers, AgentConfig, f"{where}: agent[{number}]")
            nodes.add(agent.name, agent)
        routers = {}
        for number, table in enumerate(document.router):
            filled = {"state_directory": f"{document.directory}/{table.get('name', number)}", **table}
            filled = with_secrets(filled, document.directory) if servers and "admin" in filled else filled
            router = _served(document, filled, servers, RouterNodeConfig, f"{where}: router[{number}]")
            nodes.add(router.name, router)
            routers[router.name] = router
        nodes.by_name |= {name: paired(each, routers, where) for name, each in routers.items()}
        for number, table in enumerate(document.witness):
            filled = {"state_directory": f"{document.directory}/{table.get('name', number)}", **table}
            filled = with_secrets(filled, document.directory) if _ask_for_tokens(routers, filled) else filled
            witness = convert(filled, WitnessConfig, where=f"{where}: witness[{number}]")
            nodes.add(witness.name, witness)
        for number, table in enumerate(document.console):
            console = _console(document.directory, table, servers, f"{where}: console[{number}]")
            nodes.add(console.name, console)
        for number, table in enumerate(document.player):
            player = convert(table, PlayerConfig, where=f"{where}: player[{number}]")
            nodes.add(player.name, player)
        if not nodes.by_name:
            raise ConfigurationError(
                "nothing runs in this plant",
                where=where,
                hint="add [[feed]], [[filter]], [[plant]], [[agent]], [[router]] or [[administration]]",
            )
        return Plant(path, document.name, document.directory, nodes.by_name, document.files.group)

    def make_secrets(self) -> None:
        """Write the secrets of links between nodes that the document does not name; before its nodes run."""
        make_secrets(self.nodes, self.directory, self.path.parent)

    def page(self, name: str) -> str | None:
        """The address at which a node shows itself; empty while it is not known, None for one that never does."""
        config = self.node(name)
        if isinstance(config, PlayerConfig):
            return None
        if isinstance(config, AdminConfig | ConsoleConfig) and config.port:
            return _page_at("https" if config.certificate else "http", config.host, config.port)
        if isinstance(config, AdminConfig):
            return ""
        if not isinstance(config, ConsoleConfig) and config.metrics_port:
            scheme = "https" if config.metrics_access.certificate else "http"
            return _page_at(scheme, config.metrics_host, config.metrics_port)
        return self.pages.find(name)

    @property
    def servers(self) -> list[AdminConfig]:
        return [each for each in self.nodes.values() if isinstance(each, AdminConfig)]

    def console(self) -> ConsoleConfig:
        """The document's (first) console, or one with nothing said about it."""
        described = [each for each in self.nodes.values() if isinstance(each, ConsoleConfig)]
        return described[0] if described else _console(self.directory, {}, self.servers, str(self.path))

    def node(self, name: str) -> NodeConfig:
        try:
            return self.nodes[name]
        except KeyError:
            raise ConfigurationError(
                f"has no node {name!r}", where=str(self.path), hint=f"there are: {', '.join(self.nodes)}"
            ) from None


def _ask_for_tokens(routers: Mapping[str, RouterNodeConfig], witness: Table) -> bool:
    """Whether routers of the witness's pair that are in this document have a secret of the document's."""
    named = witness.get("routers")
    return isinstance(named, list | tuple) and any(
        router.admin.url for name, router in routers.items() if name in named
    )


def _page_at(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class _Nodes:
    def __init__(self, where: str) -> None:
        self.by_name: dict[str, NodeConfig] = {}
        self._where = where

    def add(self, name: str, config: NodeConfig) -> None:
        if name in self.by_name:
            raise ConfigurationError(f"two nodes are called {name!r}", where=self._where)
        self.by_name[name] = config


def _admin(document: PlantDocument, table: Table, where: str) -> AdminConfig:
    filled = dict(table)
    name = filled.setdefault("node", filled.pop("name", "admin"))
    filled.setdefault("directory", f"{document.directory}/{name}")
    return convert(filled, AdminConfig, where=f"{where}: administration {name}")


def _adapters(document: PlantDocument, table: Table, servers: list[AdminConfig], where: str) -> list[AdapterConfig]:
    """The adapters of one feed: each with what the feed says, its own, and who the others are."""
    common = dict(table)
    own = common.pop("adapter", None)
    if not isinstance(own, list) or not all(isinstance(each, dict) for each in own):
        raise ConfigurationError("a feed has adapters", where=where, hint="add [[feed.adapter]] with a name")
    if "name" not in common:
        raise ConfigurationError("missing key 'name'", where=where)
    common["feed"] = common.pop("name")
    tables = [_merged(common, each) for each in own]
    for number, filled in enumerate(tables):
        filled.setdefault("index", number)
        filled.setdefault("state_directory", f"{document.directory}/{filled.get('name', number)}")
        if servers:
            filled.setdefault("admin", {}).setdefault("url", _url(servers))
    for filled in tables:
        others = [_peer(other, where) for other in tables if other is not filled]
        if others:
            filled.setdefault("peers", {}).setdefault("others", others)
        if servers and "peers" in filled:
            filled["peers"] = with_feed_secret(filled["peers"], filled["feed"], document.directory)
    return [convert(filled, AdapterConfig, where=f"{where}.adapter[{number}]") for number, filled in enumerate(tables)]


def _served(document: PlantDocument, table: Table, servers: list[AdminConfig], kind: type[S], where: str) -> S:
    """A node that serves clients. In a document with an administration server, such a node checks tokens."""
    filled = dict(table)
    admin = filled.get("admin")
    if servers and isinstance(admin, dict):
        filled["admin"] = {"url": _url(servers), **admin}
        filled.setdefault("state_directory", f"{document.directory}/{filled.get('name', 'node')}")
    try:
        config = convert(filled, kind, where=where)
    except ConfigurationError as error:
        if error.where.startswith(where):
            raise
        place = f"{where}: {error.where}" if error.where else where
        raise ConfigurationError(error.what, where=place, hint=error.hint) from None
    if servers and _is_open(config):
        raise ConfigurationError(
            f"{config.name} would serve every process of this machine without a token, although the document has an "
            "administration server",
            where=where,
            hint='admin = { credentials = "…" }, and no access = "open"',
        )
    return config


def _is_open(config: NodeConfig) -> bool:
    """True for a node that neither checks tokens itself nor leaves this to the node above."""
    if isinstance(config, MuxConfig):
        return config.access == "open"
    return (
        isinstance(config, FilterModuleConfig | PlantConfig | AgentConfig | RouterNodeConfig) and not config.admin.url
    )


def _console(directory: str, table: Table, servers: list[AdminConfig], where: str) -> ConsoleConfig:
    filled = dict(table)
    filled.setdefault("state_directory", f"{directory}/{filled.get('name', 'console')}")
    if servers:
        filled.setdefault("admin_url", _url(servers))
    return convert(filled, ConsoleConfig, where=where)


def _peer(table: Table, where: str) -> Table:
    peers = table.get("peers", {})
    if not isinstance(peers, dict) or "port" not in peers:
        raise ConfigurationError(
            f"the feed's other adapters cannot find {table.get('name', 'an adapter')!r}",
            where=where,
            hint="say peers.port in each [[feed.adapter]]",
        )
    return {"index": table["index"], "host": peers.get("host", "127.0.0.1"), "port": peers["port"]}


def _url(servers: list[AdminConfig]) -> str:
    scheme = "penstocks" if servers[0].certificate else "penstock"
    return f"{scheme}://" + ",".join(f"{server.host}:{server.port}" for server in servers)


def _merged(common: Table, own: Table) -> Table:
    """`own` over `common`, table by table; lists are not joined."""
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in common.items()}
    for key, value in own.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
