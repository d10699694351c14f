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
        list[str] | None, typer.Argument(metavar="[CHANNEL]...", help="Where topics flow: groups and ports.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The filter's own configuration, or a plant's: a TOML document.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Which filter, when the document is a plant's; or its name.")] = None,
    map_path: MapOption = None,
    interface: InterfaceOption = INTERFACE,
    port: Annotated[int, typer.Option(help="The TCP port where applications say what they want.")] = PORT_DEFAULT,
    repair: Annotated[
        Literal["filter", "receivers"], typer.Option(help="Who asks publishers for lost packets.")
    ] = _STANDARD.repair,
    shared: Annotated[
        Literal["mask", "residual"], typer.Option(help="What applications get that share one copy.")
    ] = _STANDARD.shared,
    spin: Annotated[bool, typer.Option("--spin", help="Look for packets all the time: quicker, takes a core.")] = False,
) -> None:
    """Pass on to the applications of this host only what they want, and account for the rest.

    With --config everything is in the document; without it, for trials on this machine, options say the most important.
    When it runs, one line of JSON on standard output says where applications connect. SIGHUP has the map read again;
    Ctrl-C or SIGTERM ends it in order.
    """
    pages = None
    if config is not None:
        if channels or map_path is not None:
            raise ConfigurationError("both a document and channels or a map are given", hint="say it in the document")
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
