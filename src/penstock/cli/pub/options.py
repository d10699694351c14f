"""The options of `penstock pub`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.common.channel import CHANNEL, INTERFACE, ChannelArgument, InterfaceOption, MapOption
from penstock.cli.common.secrets import SecretOption


@dataclass(frozen=True, kw_only=True)
class PubOptions:
    """The options as given on the command line."""

    channel: ChannelArgument = CHANNEL
    interface: InterfaceOption = INTERFACE
    group_map: MapOption = None
    topic: Annotated[str, typer.Option(help='The topic; a line\'s "topic" key takes precedence.')] = ""
    model: Annotated[str, typer.Option(help="The model of the lines: a shipped one, or the path of a document.")] = (
        "quote"
    )
    raw: Annotated[bool, typer.Option("--raw", help="Publish each line as it is, without a model.")] = False
    generate: Annotated[
        int, typer.Option(min=0, metavar="N", help="Publish N generated quotes instead of reading lines.")
    ] = 0
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=50_000_000,
            help="Messages per second. Default: 1,000 with --generate, lines at once.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="With --generate: the seed of the quotes.")] = 1
    symbols: Annotated[int, typer.Option(min=1, max=100_000, help="With --generate: number of instruments.")] = 500
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip invalid lines instead of stopping.")] = False
    filter_place: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="HOST:PORT",
            help="Also pass packets to this host's filter module in shared memory; auto: if there is one.",
        ),
    ] = "none"
    publisher_id: Annotated[int | None, typer.Option("--id", min=1, help="The publisher's id; with --epochs.")] = None
    epochs: Annotated[Path | None, typer.Option(help="The file of epochs, for --id.")] = None
    connect: Annotated[
        str | None, typer.Option(metavar="URL", help="Get the id from the administration server; with --name.")
    ] = None
    credentials: Annotated[Path | None, typer.Option(help="Your credentials, for --connect.")] = None
    secret: SecretOption = None
    name: Annotated[str | None, typer.Option(help="With --connect and --agent: the publisher's name.")] = None
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Publish on a tree: its root; may be repeated for the standby."),
    ] = None
    tree: Annotated[str, typer.Option(help="With --agent: the tree's name.")] = "tree"
