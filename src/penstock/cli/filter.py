"""`penstock filter`: run a filter module beside the applications of a host."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from penstock.base.errors import ConfigurationError
from penstock.cli.common.channel import INTERFACE, InterfaceOption, MapOption
from penstock.cli.common.nodes import control_facts, described_node, run_node
from penstock.filter.config import FilterConfig
from penstock.filter.core.control import PORT_DEFAULT
from penstock.filter.live.driver import LiveFilter
from penstock.filter.module_config import FilterAccess, FilterModuleConfig

_STANDARD = FilterConfig()


def filter_module(
    channels: Annotated[
        list[str] | None, typer.Argument(metavar="[CHANNEL]...", help="The channels to receive: groups and ports.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The filter's own configuration, or a plant's: a TOML document.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The filter's name, also in a plant's document.")] = None,
    map_path: MapOption = None,
    interface: InterfaceOption = INTERFACE,
    port: Annotated[int, typer.Option(help="The TCP port for applications.")] = PORT_DEFAULT,
    repair: Annotated[
        Literal["filter", "receivers"], typer.Option(help="Who requests lost packets from publishers.")
    ] = _STANDARD.repair,
    shared: Annotated[Literal["mask", "residual"], typer.Option(help="The form of shared copies.")] = _STANDARD.shared,
    spin: Annotated[bool, typer.Option("--spin", help="Poll continuously, which is faster and takes a core.")] = False,
) -> None:
    """Run a filter module: forward to each application of this host only the messages of its interests, and account for
    the rest.

    With --config all settings are in the document; without it, for trials on this machine, options have the main
    ones. When the module runs, one line of JSON on standard output has its address for applications. SIGHUP makes it
    read the map again; Ctrl-C or SIGTERM shuts it down.
    """
    pages = None
    if config is not None:
        if channels or map_path is not None:
            raise ConfigurationError("--config excludes channels and --map", hint="put these settings in the document")
        chosen, pages = described_node(config, name, FilterModuleConfig, "filter")
    else:
        chosen = FilterModuleConfig(
            name=name or "filter",
            interface=interface,
            channels=tuple(channels or ()),
            map="" if map_path is None else str(map_path),
            control=FilterAccess(port=port),
            repair=repair,
            shared=shared,
            spin=spin,
        )
    facts = control_facts("filter", chosen.name)
    run_node(chosen.name, lambda: LiveFilter(chosen), facts, pages, on_hangup=LiveFilter.reload_map)
