"""`penstock plant`, `penstock mux` and `penstock edge`: run a distribution node in the foreground."""

from pathlib import Path
from typing import Annotated, NoReturn, TypeVar, cast, get_args

import typer

from penstock.base.errors import ConfigurationError
from penstock.cli.clock import parse_address
from penstock.cli.common.channel import INTERFACE, InterfaceOption
from penstock.cli.common.nodes import described_node, run_node
from penstock.engine.control import EDGE_PORT_DEFAULT, MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT
from penstock.node.pages import Pages
from penstock.plant.config import AnyNodeConfig, MuxAccess, MuxConfig, PlantAccess, PlantConfig, UpstreamConfig
from penstock.plant.core.views import ViewName
from penstock.plant.edge_config import WEBSOCKET_PORT_DEFAULT, EdgeAccess, EdgeConfig, WebSocketAccess
from penstock.plant.live.driver import LiveNode

C = TypeVar("C", PlantConfig, MuxConfig, EdgeConfig)

ConfigOption = Annotated[Path | None, typer.Option(help="The node's own configuration, or a plant's: a TOML document.")]
NameOption = Annotated[str | None, typer.Option(help="The node's name, also in a plant's document.")]
UpstreamArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[HOST:PORT]",
        help="The upstream node.",
        show_default=f"127.0.0.1:{PLANT_PORT_DEFAULT}",
    ),
]
PortOption = Annotated[int, typer.Option(help="The TCP port for consumers.")]


def ticker_plant(
    channels: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHANNEL]...",
            help="Without --config: the channels to distribute, like 239.255.20.1:17401.",
        ),
    ] = None,
    config: ConfigOption = None,
    name: NameOption = None,
    interface: InterfaceOption = INTERFACE,
    port: PortOption = PLANT_PORT_DEFAULT,
    view: Annotated[list[str] | None, typer.Option(help="Also derive these items; may be repeated.")] = None,
) -> None:
    """Run a ticker plant: keep the current record of every item, and deliver to each consumer the items of its
    subscriptions at its own pace.

    With --config all settings are in the document; without it, for trials on this machine, options have the main
    ones. When the node runs, one line of JSON on standard output has its address for consumers. SIGHUP makes it read
    the classification rules again; Ctrl-C or SIGTERM shuts it down.
    """
    if config is None and not channels:
        raise ConfigurationError(
            "a plant needs topics or channels to distribute", hint="name a channel, or use --config"
        )
    chosen, pages = _configured(config, name, PlantConfig, "plant", has_more=bool(channels))
    if chosen is None:
        chosen = PlantConfig(
            name=name or "plant",
            interface=interface,
            channels=tuple(channels or ()),
            control=PlantAccess(port=port),
            views=tuple(_view(each) for each in view or ()),
        )
    _run(chosen, pages)


def _view(name: str) -> ViewName:
    if name not in get_args(ViewName):
        raise ConfigurationError(f"no view is called {name!r}", hint=", ".join(get_args(ViewName)))
    return cast("ViewName", name)


def multiplexer(
    upstream: UpstreamArgument = None,
    config: ConfigOption = None,
    name: NameOption = None,
    port: PortOption = MUX_PORT_DEFAULT,
) -> None:
    """Run a multiplexer: subscribe once to an upstream node for all consumers of this host, and deliver through shared
    memory.

    With --config all settings are in the document; without it, for trials on this machine, options have the main
    ones. When the node runs, one line of JSON on standard output has its address for consumers. SIGHUP makes it read
    the classification rules again; Ctrl-C or SIGTERM shuts it down.
    """
    chosen, pages = _configured(config, name, MuxConfig, "mux", has_more=upstream is not None)
    if chosen is None:
        host, above = parse_address(upstream or f"127.0.0.1:{PLANT_PORT_DEFAULT}")
        chosen = MuxConfig(
            name=name or "mux", control=MuxAccess(port=port), upstream=UpstreamConfig(host=host, port=above)
        )
    _run(chosen, pages)


def edge_cache(
    upstream: UpstreamArgument = None,
    config: ConfigOption = None,
    name: NameOption = None,
    port: PortOption = EDGE_PORT_DEFAULT,
    websocket_port: Annotated[int, typer.Option(help="The TCP port of WebSockets.")] = WEBSOCKET_PORT_DEFAULT,
    origin: Annotated[
        list[str] | None, typer.Option(help="A web site whose pages may connect; may be repeated.")
    ] = None,
) -> None:
    """Run an edge cache: subscribe to a plant or multiplexer for many slow clients, and deliver by TCP and WebSocket.

    With --config all settings are in the document; without it, for trials on this machine, options have the main
    ones. When the node runs, one line of JSON on standard output has its address for clients. SIGHUP makes it read
    the classification rules again; Ctrl-C or SIGTERM shuts it down.
    """
    chosen, pages = _configured(config, name, EdgeConfig, "edge", has_more=upstream is not None)
    if chosen is None:
        host, above = parse_address(upstream or f"127.0.0.1:{PLANT_PORT_DEFAULT}")
        chosen = EdgeConfig(
            name=name or "edge",
            control=EdgeAccess(port=port),
            websocket=WebSocketAccess(port=websocket_port, origins=tuple(origin or ())),
            upstream=UpstreamConfig(host=host, port=above),
        )
    _run(chosen, pages)


def _configured(
    path: Path | None, name: str | None, kind: type[C], what: str, *, has_more: bool
) -> tuple[C | None, Pages | None]:
    """Return the configuration in the document; None without a document."""
    if path is None:
        return None, None
    if has_more:
        raise ConfigurationError(
            "--config excludes an upstream address or channels", hint="put these settings in the document"
        )
    return described_node(path, name, kind, what)


def _run(config: AnyNodeConfig, pages: Pages | None = None) -> NoReturn:
    run_node(
        config.name,
        lambda: LiveNode(config),
        lambda live: _facts_of(config.name, live),
        pages,
        on_hangup=lambda live: live.reload_classes(),
    )


def _facts_of(name: str, live: LiveNode) -> dict[str, object]:
    facts: dict[str, object] = {live.config.kind: name, "control_port": live.control_port}
    if live.websocket_port is not None:
        facts["websocket_port"] = live.websocket_port
    return facts
