"""The options of `penstock sub`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from penstock.base.errors import ConfigurationError
from penstock.cli.common.channel import INTERFACE, FromStartOption, InterfaceOption, MapOption
from penstock.cli.sub.output import EVERYTHING, Output

Accept: TypeAlias = Literal["live", "replay", "both"]


@dataclass(frozen=True, kw_only=True)
class SubOptions:
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHANNEL] [PATTERN]...",
            help="A multicast group and port, then what to show: md.us.>, md.*.quote, '!md.us.eq.ZZ*.>', …",
        ),
    ] = None
    interface: InterfaceOption = INTERFACE
    group_map: MapOption = None
    where: Annotated[str | None, typer.Option(help="Only messages that meet this SQL condition on --model.")] = None
    model: Annotated[str, typer.Option(help="The model of --where, and how to read its messages.")] = "quote"
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Only a line per second, and the summary.")] = False
    count: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None
    seconds: Annotated[float, typer.Option(min=0.0, help="End after so long.")] = float("inf")
    from_start: FromStartOption = False
    accept: Annotated[
        Accept, typer.Option(help="What is shown: what is live, what `pipeline replay` plays from the past, or both.")
    ] = "live"
    spin: Annotated[bool, typer.Option(help="Wait by looking again and again: quicker, a whole core.")] = False
    loss: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of datagrams to throw away on purpose.")] = 0.0
    latency: Annotated[
        bool, typer.Option("--latency", help="Say how old the messages of --model were, by their event_time.")
    ] = False
    clock: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where `penstock clock serve` runs on the host that made event_time."),
    ] = None
    filter_place: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="HOST:PORT",
            help="Through this filter module. auto (default with --connect): the host's module if it answers; none.",
        ),
    ] = None
    delivery: Annotated[str, typer.Option(help="Of --filter: how packets come.", metavar="unicast|ring|shared")] = (
        "unicast"
    )
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="HOST:PORT", help="Through this distribution node; auto: the host's."),
    ] = None
    records: Annotated[
        bool, typer.Option("--records", help="Of a node: the newest records as they change, not every message.")
    ] = False
    metered: Annotated[
        float | None,
        typer.Option("--metered", metavar="RATE", min=0.0, help="Of a node: no more per second of each topic."),
    ] = None
    offload: Annotated[
        bool, typer.Option("--offload", help="Of a node: a process of its own checks, filters and converts.")
    ] = False
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Through this agent of a tree; repeated: others in its place."),
    ] = None
    since: Annotated[
        str,
        typer.Option(
            metavar="WHEN", help="Of --agent: live, oldest, after a sequence, how long ago (6h), 2026-01-31T09:30."
        ),
    ] = "live"
    cls: Annotated[
        str,
        typer.Option("--class", metavar="lossless|conflating|disconnect", help="Of --agent: when it is too slow."),
    ] = "lossless"
    tree: Annotated[str, typer.Option(help="Of --agent: the tree's name.")] = "tree"
    infostream: Annotated[bool, typer.Option("--infostream", help="Of --agent: show what agents say, too.")] = False
    connect: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Subscribe through the administration server at penstock://HOST:PORT."),
    ] = None
    credentials: Annotated[Path | None, typer.Option(help="Of --connect: the file that says who you are.")] = None
    image: Annotated[bool, typer.Option("--image", help="Of --connect: begin with the current state.")] = False
    transport: Annotated[
        str, typer.Option(help="Of --connect: auto, multicast or tcp.", metavar="auto|multicast|tcp")
    ] = "auto"

    @property
    def topics(self) -> tuple[str, ...]:
        """The arguments as topics; every topic without an argument. Only a channel takes an address among them."""
        return tuple(self.arguments or (EVERYTHING,))

    @property
    def output(self) -> Output:
        return Output(self.json, self.quiet, self.count, self.seconds)

    def needed_credentials(self) -> Path:
        """The credentials of --connect."""
        if self.credentials is None:
            raise ConfigurationError("--connect needs --credentials", hint="a file made by `penstock admin client`")
        return self.credentials
