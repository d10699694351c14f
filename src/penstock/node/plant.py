"""A plant: the nodes of one plant.toml with their configurations, their pages, and the secrets of their links."""

from collections.abc import Mapping
from pathlib import Path

from penstock.admin.config import AdminConfig
from penstock.base.errors import ConfigurationError
from penstock.feed.core.play.config import PlayerConfig
from penstock.node.console_config import ConsoleConfig
from penstock.node.document import NodeConfig, console_config, load_document, url_of
from penstock.node.link_secrets import make_secrets
from penstock.node.pages import Pages


class Plant:
    """A checked plant.toml: the configuration of every node, by name, in the order in which nodes start."""

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
        document, nodes = load_document(path)
        return Plant(path, document.name or "", document.directory, nodes, document.files.group)

    def make_secrets(self) -> None:
        """Write the missing secrets of links between nodes. Call it before the nodes run."""
        make_secrets(self.nodes, self.directory, self.path.parent)

    def page(self, name: str) -> str | None:
        """The address of a node's status page; empty while it is unknown, None for a node without a page."""
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
        """The document's first console, or one with default settings."""
        described = [each for each in self.nodes.values() if isinstance(each, ConsoleConfig)]
        if described:
            return described[0]
        url = url_of(self.servers) if self.servers else ""
        return console_config(self.directory, url, str(self.path))

    def node(self, name: str) -> NodeConfig:
        try:
            return self.nodes[name]
        except KeyError:
            raise ConfigurationError(
                f"has no node {name!r}", where=str(self.path), hint=f"the nodes are {', '.join(self.nodes)}"
            ) from None


def _page_at(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
