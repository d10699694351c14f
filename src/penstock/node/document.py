"""plant.toml: the document that describes a plant, and how each of its tables becomes the configuration of a node.

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

SECTIONS lists the tables in the order in which their nodes start, each with the type of its configuration, which
describes its keys. Paths begin at the document's directory. Loading fills in what the document implies: the other
adapters of a feed, the addresses of the administration servers, state directories, and the secrets of links between
nodes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from penstock.admin.config import AdminConfig
from penstock.assured.node_config import RouterNodeConfig, WitnessConfig
from penstock.base.config import Config, convert, load_toml
from penstock.base.errors import ConfigurationError
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.play.config import PlayerConfig
from penstock.filter.module_config import FilterModuleConfig
from penstock.net.core.control import Name
from penstock.node.console_config import ConsoleConfig
from penstock.node.link_secrets import with_feed_secret, with_secrets
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

T = TypeVar("T")


class FilesConfig(Config, frozen=True):
    """Access to journals, captures, accounts and other state."""

    group: str = ""
    """A group of this machine whose members may read; empty: only the user that runs the plant."""


class PlantDocument(Config, frozen=True):
    name: Name | None = None
    """Required; a document without a name is refused with a hint."""

    directory: str = "state"
    """Directory for the nodes' state, with a subdirectory for each node."""

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


class Section(msgspec.Struct, frozen=True):
    """Converts the tables of one key to configurations."""

    config: type[Any]
    fill: "tuple[Callable[[Loader, Table], None], ...]" = ()
    """Functions that complete a copy of the table before its values are checked."""

    check: "Callable[[Loader, Any], None] | None" = None
    """Refuses a configuration whose values are valid individually, but not together."""

    split: "Callable[[Loader, Table, str], list[tuple[Table, str]]] | None" = None
    """Splits a table into one table per node, with its place in the document; without it, the table describes one
    node."""


class Loader:
    """Converts one document to configurations, by name, in the order in which nodes start."""

    def __init__(self, path: Path, document: PlantDocument) -> None:
        self.where = str(path)
        self.directory = document.directory
        self.nodes: dict[str, NodeConfig] = {}
        self._document = document

    def load(self) -> dict[str, NodeConfig]:
        for key, section in SECTIONS.items():
            for number, table in enumerate(getattr(self._document, key)):
                where = f"{self.where}: {key}[{number}]"
                parts = [(table, where)] if section.split is None else section.split(self, table, where)
                for part, place in parts:
                    self._add(self._config_of(section, part, place))
        routers = self.routers
        self.nodes |= {name: paired(each, routers, self.where) for name, each in routers.items()}
        if not self.nodes:
            raise ConfigurationError(
                "the plant has no nodes",
                where=self.where,
                hint="add [[feed]], [[filter]], [[plant]], [[agent]], [[router]] or [[administration]]",
            )
        return self.nodes

    @property
    def server_url(self) -> str:
        """The address of the document's administration servers; empty if there are none."""
        servers = list(self._of_type(AdminConfig).values())
        return url_of(servers) if servers else ""

    @property
    def routers(self) -> Mapping[str, RouterNodeConfig]:
        return self._of_type(RouterNodeConfig)

    def _of_type(self, kind: type[T]) -> dict[str, T]:
        return {name: each for name, each in self.nodes.items() if isinstance(each, kind)}

    def _config_of(self, section: Section, table: Table, where: str) -> NodeConfig:
        filled = dict(table)
        for fill in section.fill:
            fill(self, filled)
        try:
            config: NodeConfig = convert(filled, section.config, where=where)
            if section.check is not None:
                section.check(self, config)
        except ConfigurationError as error:
            if error.where.startswith(where):
                raise
            place = f"{where}: {error.where}" if error.where else where
            raise ConfigurationError(error.what, where=place, hint=error.hint) from None
        return config

    def _add(self, config: NodeConfig) -> None:
        name = name_of(config)
        if name in self.nodes:
            raise ConfigurationError(f"two nodes are called {name!r}", where=self.where)
        self.nodes[name] = config


def name_of(config: NodeConfig) -> str:
    return config.node if isinstance(config, AdminConfig) else config.name


def load_document(path: Path) -> tuple[PlantDocument, dict[str, NodeConfig]]:
    """Load a document and the configurations of its nodes by name."""
    document = load_toml(path, PlantDocument)
    if document.name is None:
        raise ConfigurationError("the plant has no name", where=str(path), hint='add name = "example" at the top')
    return document, Loader(path, document).load()


def console_config(directory: str, server_url: str, where: str) -> ConsoleConfig:
    """Return the configuration of a console that is not in a document."""
    filled: Table = {"state_directory": f"{directory}/console"}
    if server_url:
        filled["admin_url"] = server_url
    return convert(filled, ConsoleConfig, where=where)


def url_of(servers: list[AdminConfig]) -> str:
    scheme = "penstocks" if servers[0].certificate else "penstock"
    return f"{scheme}://" + ",".join(f"{server.host}:{server.port}" for server in servers)


# Completing a table


def _server_of(loader: Loader, table: Table, _where: str) -> list[tuple[Table, str]]:
    filled = dict(table)
    name = filled.setdefault("node", filled.pop("name", "admin"))
    filled.setdefault("directory", f"{loader.directory}/{name}")
    return [(filled, f"{loader.where}: administration {name}")]


def _give_state(loader: Loader, table: Table) -> None:
    table.setdefault("state_directory", f"{loader.directory}/{table.get('name', 'node')}")


def _give_server(loader: Loader, table: Table) -> None:
    """A node with credentials checks tokens of the document's administration servers, and stores the token state."""
    admin = table.get("admin")
    if loader.server_url and isinstance(admin, dict):
        table["admin"] = {"url": loader.server_url, **admin}
        _give_state(loader, table)


def _give_router_secrets(loader: Loader, table: Table) -> None:
    if loader.server_url and "admin" in table:
        table.update(with_secrets(table, loader.directory))


def _give_witness_secrets(loader: Loader, table: Table) -> None:
    """Give a witness the secrets of its routers, if these check tokens."""
    named = table.get("routers")
    if isinstance(named, list | tuple) and any(
        loader.routers[name].admin.url for name in named if name in loader.routers
    ):
        table.update(with_secrets(table, loader.directory))


def _give_console(loader: Loader, table: Table) -> None:
    table.setdefault("state_directory", f"{loader.directory}/{table.get('name', 'console')}")
    if loader.server_url:
        table.setdefault("admin_url", loader.server_url)


# Refusing a configuration


def _refuse_open(loader: Loader, config: FilterModuleConfig | AgentConfig | RouterNodeConfig | PlantConfig) -> None:
    if not config.admin.url:
        _refuse_without_tokens(loader, config.name)


def _refuse_open_mux(loader: Loader, config: MuxConfig) -> None:
    if config.access == "open":
        _refuse_without_tokens(loader, config.name)


def _refuse_without_tokens(loader: Loader, name: str) -> None:
    if loader.server_url:
        raise ConfigurationError(
            f"{name} would serve every process of this machine without a token, although the document has an "
            "administration server",
            hint='admin = { credentials = "…" }, and remove access = "open"',
        )


def _check_plant(loader: Loader, config: PlantConfig) -> None:
    _refuse_open(loader, config)
    if not config.subscribe and not config.channels:
        raise ConfigurationError(
            f"{config.name} distributes nothing: it has no topics or channels",
            hint='name what it takes: subscribe = ["md.>"], or channels',
        )


# A feed and its adapters


def _adapters_of(loader: Loader, table: Table, where: str) -> list[tuple[Table, str]]:
    """Return the tables of one feed's adapters: the feed's keys, the adapter's own keys, and the addresses of the
    other adapters."""
    common = dict(table)
    own = common.pop("adapter", None)
    if not isinstance(own, list) or not all(isinstance(each, dict) for each in own):
        raise ConfigurationError("a feed needs adapters", where=where, hint="add [[feed.adapter]] with a name")
    if "name" not in common:
        raise ConfigurationError("missing key 'name'", where=where)
    common["feed"] = common.pop("name")
    tables = [_merged(common, each) for each in own]
    for number, filled in enumerate(tables):
        filled.setdefault("index", number)
        filled.setdefault("state_directory", f"{loader.directory}/{filled.get('name', number)}")
        if loader.server_url:
            filled.setdefault("admin", {}).setdefault("url", loader.server_url)
    for filled in tables:
        others = [_peer(other, where) for other in tables if other is not filled]
        if others:
            filled.setdefault("peers", {}).setdefault("others", others)
        if loader.server_url and "peers" in filled:
            filled["peers"] = with_feed_secret(filled["peers"], filled["feed"], loader.directory)
    return [(filled, f"{where}.adapter[{number}]") for number, filled in enumerate(tables)]


def _peer(table: Table, where: str) -> Table:
    peers = table.get("peers", {})
    if not isinstance(peers, dict) or "port" not in peers:
        raise ConfigurationError(
            f"{table.get('name', 'an adapter')!r} has no port for the feed's other adapters",
            where=where,
            hint="set peers.port in each [[feed.adapter]]",
        )
    return {"index": table["index"], "host": peers.get("host", "127.0.0.1"), "port": peers["port"]}


def _merged(common: Table, own: Table) -> Table:
    """Merge two tables recursively; values of `own` take precedence, and lists are not joined."""
    merged = {key: dict(value) if isinstance(value, dict) else value for key, value in common.items()}
    for key, value in own.items():
        below = merged.get(key)
        merged[key] = _merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


SECTIONS = {
    "administration": Section(AdminConfig, split=_server_of),
    "feed": Section(AdapterConfig, split=_adapters_of),
    "filter": Section(FilterModuleConfig, fill=(_give_server,), check=_refuse_open),
    "plant": Section(PlantConfig, fill=(_give_server,), check=_check_plant),
    "mux": Section(MuxConfig, fill=(_give_server,), check=_refuse_open_mux),
    "edge": Section(EdgeConfig, fill=(_give_server,), check=_refuse_open_mux),
    "agent": Section(AgentConfig, fill=(_give_state, _give_server), check=_refuse_open),
    "router": Section(RouterNodeConfig, fill=(_give_state, _give_router_secrets, _give_server), check=_refuse_open),
    "witness": Section(WitnessConfig, fill=(_give_state, _give_witness_secrets)),
    "console": Section(ConsoleConfig, fill=(_give_console,)),
    "player": Section(PlayerConfig),
}
"""By key of plant.toml, in the order in which nodes start."""
