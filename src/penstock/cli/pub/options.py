"""The options of `penstock pub`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.common.channel import CHANNEL, INTERFACE, ChannelArgument, InterfaceOption, MapOption


@dataclass(frozen=True, kw_only=True)
class PubOptions:
    """As the command line has them."""

    channel: ChannelArgument = CHANNEL
    interface: InterfaceOption = INTERFACE
    group_map: MapOption = None
    topic: Annotated[str, typer.Option(help='The topic; a line\'s "topic" key comes first.')] = ""
    model: Annotated[str, typer.Option(help="The model of the lines: shipped, or the path of a document.")] = "quote"
    raw: Annotated[bool, typer.Option("--raw", help="Publish each line as it is, without a model.")] = False
    generate: Annotated[
        int, typer.Option(min=0, metavar="N", help="Publish N made-up quotes instead of reading lines.")
    ] = 0
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=50_000_000,
            help="Messages per second; unless given: --generate 1,000, lines at once.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Of --generate: another seed, other quotes.")] = 1
    symbols: Annotated[int, typer.Option(min=1, max=100_000, help="Of --generate: how many instruments.")] = 500
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Go on after a bad line, instead of stopping.")] = False
    filter_place: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="HOST:PORT",
            help="Give packets to this host's filter module by shared memory, too; auto: if there is one; none.",
        ),
    ] = "none"
    publisher_id: Annotated[int | None, typer.Option("--id", min=1, help="The publisher's id; with --epochs.")] = None
    epochs: Annotated[Path | None, typer.Option(help="The file that keeps the epochs of --id.")] = None
    connect: Annotated[
        str | None, typer.Option(metavar="URL", help="Get the id from the administration server; with --name.")
    ] = None
    credentials: Annotated[Path | None, typer.Option(help="Of --connect: the file that says who you are.")] = None
    name: Annotated[str | None, typer.Option(help="Of --connect and --agent: the name that has the id.")] = None
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="On a tree, at its root; repeated: its standby. Not on a channel."),
    ] = None
    tree: Annotated[str, typer.Option(help="Of --agent: the tree's name.")] = "tree"
