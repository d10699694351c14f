"""`penstock plant` and `penstock mux`: run a node that distributes, in the foreground."""

import asyncio
import sys
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from penstock.base.config import load_toml
from penstock.base.errors import ConfigurationError
from penstock.cli.channel import INTERFACE, InterfaceOption
from penstock.cli.clock import parse_address
from penstock.cli.nodes import SWITCH_SECONDS, announce, node_of_plant
from penstock.engine.control import MUX_PORT_DEFAULT, PLANT_PORT_DEFAULT
from penstock.net.agent import run_agent
from penstock.plant.config import AnyNodeConfig, MuxAccess, MuxConfig, PlantAccess, PlantConfig, UpstreamConfig
from penstock.plant.driver import live_node
from penstock.plant.views import ViewName

C = TypeVar("C", PlantConfig, MuxConfig)

ConfigOption = Annotated[Path | None, typer.Option(help="The node's own configuration, or a plant's: a TOML document.")]
NameOption = Annotated[str | None, typer.Option(help="Which node, when the document is a plant's; or its name.")]
PortOption = Annotated[int, typer.Option(help="The TCP port where consumers say what they want.")]


def ticker_plant(
    channels: Annotated[
        list[str] | None, typer.Argument(metavar="[CHANNEL]...", help="What it distributes: groups and ports.")
    ] = None,
    config: ConfigOption = None,
    name: NameOption = None,
    interface: InterfaceOption = INTERFACE,
    port: PortOption = PLANT_PORT_DEFAULT,
    view: Annotated[list[ViewName] | None, typer.Option(help="Derive these items too; may be repeated.")] = None,
) -> None:
    """Keep the current record of every item, and give consumers what they want of it, each at its own pace.

    With --config everything is in the document; without it, for trials on this machine, options say the most important.
    When it runs, one line of JSON on standard output says where consumers connect. SIGHUP has the rules of classes read
    again; Ctrl-C or SIGTERM ends it in order.
    """
    chosen = _configured(config, name, PlantConfig, "plant", has_more=bool(channels)) or PlantConfig(
        name=name or "plant",
        interface=interface,
        channels=tuple(channels or ()),
        control=PlantAccess(port=port),
        views=tuple(view or ()),
    )
    raise typer.Exit(run_node(chosen))


def multiplexer(
    upstream: Annotated[
        str | None, typer.Argument(metavar="[HOST:PORT]", help="The plant, or another node, that it takes from.")
    ] = None,
    config: ConfigOption = None,
    name: NameOption = None,
    port: PortOption = MUX_PORT_DEFAULT,
) -> None:
    """Take from a plant, once, what the consumers of this host want, and give it to them in shared memory.

    With --config everything is in the document; without it, for trials on this machine, options say the most important.
    When it runs, one line of JSON on standard output says where consumers connect. SIGHUP has the rules of classes read
    again; Ctrl-C or SIGTERM ends it in order.
    """
    chosen = _configured(config, name, MuxConfig, "mux", has_more=upstream is not None)
    if chosen is None:
        host, above = parse_address(upstream or f"127.0.0.1:{PLANT_PORT_DEFAULT}")
        chosen = MuxConfig(
            name=name or "mux", control=MuxAccess(port=port), upstream=UpstreamConfig(host=host, port=above)
        )
    raise typer.Exit(run_node(chosen))


def _configured(path: Path | None, name: str | None, kind: type[C], what: str, *, has_more: bool) -> C | None:
    """What the document says; None without one."""
    if path is None:
        return None
    if has_more:
        raise ConfigurationError("both a document and where to take from are given", hint="say it in the document")
    return load_toml(path, kind) if name is None else node_of_plant(path, name, kind, what)


def run_node(config: AnyNodeConfig) -> int:
    sys.setswitchinterval(SWITCH_SECONDS)

    async def main(stop: asyncio.Event) -> None:
        node = live_node(config)
        await node.start()
        announce({node.kind: config.name, "control_port": node.control_port, "url": node.endpoint_url})
        await node.run(stop)

    return run_agent(main, name=config.name)
