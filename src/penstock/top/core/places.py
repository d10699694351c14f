"""The addresses of nodes' pages: from plant.toml, or as given."""

from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from penstock.admin.config import AdminConfig
from penstock.assured.node_config import RouterNodeConfig, WitnessConfig
from penstock.base.errors import ConfigurationError
from penstock.feed.adapter_config import AdapterConfig
from penstock.feed.core.play.config import PlayerConfig
from penstock.filter.module_config import FilterModuleConfig
from penstock.node.console_config import ConsoleConfig
from penstock.node.document import NodeConfig
from penstock.node.plant import Plant
from penstock.plant.config import MuxConfig, PlantConfig
from penstock.plant.edge_config import EdgeConfig
from penstock.tree.config import AgentConfig

ROLES: dict[type[NodeConfig], str] = {
    AdminConfig: "administration",
    AdapterConfig: "adapter",
    FilterModuleConfig: "filter",
    PlantConfig: "plant",
    MuxConfig: "mux",
    EdgeConfig: "edge",
    AgentConfig: "agent",
    RouterNodeConfig: "router",
    WitnessConfig: "witness",
    ConsoleConfig: "console",
    PlayerConfig: "player",
}

UNKNOWN = "not started from this document on this host, or still starting (its metrics_port is 0)"


class Place(msgspec.Struct, frozen=True):
    """The address of a node's pages; port 0: unknown, for the reason in `why`."""

    name: str
    """The node's name in the document, or its address."""

    host: str = ""
    port: int = 0
    role: str = ""
    """The role in the document; empty if the node itself reports it."""

    is_expected: bool = True
    """False for a node without a page."""

    why: str = ""
    certificate: str = ""
    """The server's own certificate, if it uses TLS; no other is trusted."""

    ca_file: str = ""
    """CA certificates for a page with TLS whose own certificate is not known."""

    token_file: str = ""
    """The file with the bearer token of the page."""

    failing: str = ""
    """Why the plant's supervisor considers the node failing."""

    restarts: int = 0
    """Restarts by the plant's supervisor."""


def places_of_plant(plant: Plant) -> list[Place]:
    """Return every node, in the plant's order."""
    return [_place_in(plant, name, config) for name, config in plant.nodes.items()]


def place_given(address: str, *, ca_file: str = "", token_file: str = "") -> Place:
    """Parse HOST:PORT, or the URL that a node prints when it starts. The files are for a page with TLS,
    https://HOST:PORT.
    """
    is_protected = address.startswith("https://")
    bare = address.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, port = _parse(f"http://{bare}")
    if not port:
        raise ConfigurationError(
            f"{address!r} is not the address of a node's page", hint="use HOST:PORT, or https://HOST:PORT"
        )
    if not is_protected:
        return Place(bare, host, port)  # without TLS, the token is not sent
    if not ca_file or not token_file:
        raise ConfigurationError(
            f"the page {address!r} needs TLS and a token",
            hint="give --ca-file and --token-file to `penstock top`, or pass the plant's document instead",
        )
    return Place(bare, host, port, ca_file=ca_file, token_file=token_file)


def _place_in(plant: Plant, name: str, config: NodeConfig) -> Place:
    role, failing, restarts = ROLES[type(config)], plant.pages.failing(name), plant.pages.restarts(name)
    page = plant.page(name)
    if page is None:
        return Place(
            name, role=role, is_expected=False, why=f"a {role} has no page", failing=failing, restarts=restarts
        )
    host, port = _parse(page)
    if not port:
        return Place(name, role=role, why=UNKNOWN, failing=failing, restarts=restarts)
    directory = Path(plant.path).parent
    certificate = token_file = ""
    if isinstance(config, AdminConfig | ConsoleConfig):
        if config.certificate:
            certificate = str(directory / config.certificate)
        if config.metrics_access.token_file:
            token_file = str(directory / config.metrics_access.token_file)
    elif not isinstance(config, PlayerConfig) and config.metrics_access.certificate:
        certificate = str(directory / config.metrics_access.certificate)
        token_file = str(directory / config.metrics_access.token_file)
    return Place(
        name, host, port, role, certificate=certificate, token_file=token_file, failing=failing, restarts=restarts
    )


def _parse(url: str) -> tuple[str, int]:
    """Return host and port; port 0 if invalid."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 0
    except ValueError:
        return "", 0
    is_plain = parts.path in ("", "/") and not (parts.query or parts.fragment or parts.username)
    return (host, port) if host and is_plain else ("", 0)
