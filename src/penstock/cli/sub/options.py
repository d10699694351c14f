"""The options of `penstock sub`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias, cast

import typer

from penstock.base.errors import ConfigurationError
from penstock.cli.common.channel import INTERFACE, FromStartOption, InterfaceOption, MapOption
from penstock.cli.common.secrets import SecretOption, given_secret
from penstock.cli.sub.output import EVERYTHING, Output

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.filter.core.control import Wish

Accept: TypeAlias = Literal["live", "replay", "both"]


@dataclass(frozen=True, kw_only=True)
class SubOptions:
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHANNEL] [PATTERN]...",
            help="A multicast group and port, then topics: md.us.>, md.*.quote, '!md.us.eq.ZZ*.>', …",
        ),
    ] = None
    interface: InterfaceOption = INTERFACE
    group_map: MapOption = None
    where: Annotated[
        str | None, typer.Option(help="Only messages that match this SQL condition on fields of --model.")
    ] = None
    model: Annotated[str, typer.Option(help="The model of --where.")] = "quote"
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False
    quiet: Annotated[bool, typer.Option("--quiet", help="Only one line per second, and the summary.")] = False
    count: Annotated[int | None, typer.Option(min=1, help="End after this number of messages.")] = None
    seconds: Annotated[float, typer.Option(min=0.0, help="End after this time.")] = float("inf")
    from_start: FromStartOption = False
    accept: Annotated[
        Accept, typer.Option(help="Accept live messages, replayed ones of `pipeline replay`, or both.")
    ] = "live"
    spin: Annotated[bool, typer.Option(help="Poll continuously, which is faster and takes a core.")] = False
    loss: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of datagrams to discard, as a test.")] = 0.0
    latency: Annotated[
        bool, typer.Option("--latency", help="Report the age of --model messages, by their event_time.")
    ] = False
    clock: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of `penstock clock serve` on the host that set event_time."),
    ] = None
    filter_place: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="HOST:PORT",
            help="Through this filter module. auto (default with --connect): the host's module if it answers; none.",
        ),
    ] = None
    delivery: Annotated[
        str, typer.Option(help="With --filter: the delivery of packets.", metavar="unicast|ring|shared")
    ] = "unicast"
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="HOST:PORT", help="Through this distribution node; auto: the host's."),
    ] = None
    records: Annotated[
        bool, typer.Option("--records", help="With --node: the newest records instead of every message.")
    ] = False
    metered: Annotated[
        float | None,
        typer.Option(
            "--metered", metavar="RATE", min=0.0, help="With --node: maximum updates per second of each topic."
        ),
    ] = None
    offload: Annotated[
        bool, typer.Option("--offload", help="With --node: check, filter and convert in a separate process.")
    ] = False
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Through this agent of a tree; may be repeated for alternates."),
    ] = None
    since: Annotated[
        str,
        typer.Option(
            metavar="WHEN",
            help="With --agent: the start: live, oldest, a sequence number, an age (6h), or a time (2026-01-31T09:30).",
        ),
    ] = "live"
    cls: Annotated[
        str,
        typer.Option(
            "--class", metavar="lossless|conflating|disconnect", help="With --agent: handling of a slow subscriber."
        ),
    ] = "lossless"
    tree: Annotated[str, typer.Option(help="With --agent: the tree's name.")] = "tree"
    infostream: Annotated[bool, typer.Option("--infostream", help="With --agent: also show the infostream.")] = False
    connect: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Subscribe through the administration server at penstock://HOST:PORT."),
    ] = None
    credentials: Annotated[Path | None, typer.Option(help="Your credentials, for --connect.")] = None
    secret: SecretOption = None
    image: Annotated[bool, typer.Option("--image", help="With --connect: begin with the current state.")] = False
    transport: Annotated[
        str, typer.Option(help="With --connect: auto, multicast or tcp.", metavar="auto|multicast|tcp")
    ] = "auto"

    @property
    def topics(self) -> tuple[str, ...]:
        """The arguments as topics; without arguments, all topics. Only a channel has an address among its arguments."""
        return tuple(self.arguments or (EVERYTHING,))

    @property
    def output(self) -> Output:
        return Output(self.json, self.quiet, self.count, self.seconds)

    def connected(self) -> "Client":
        """Log in at the server of --connect."""
        from penstock.client import ClientConfig, connect
        from penstock.filter.client.discovery import AUTO

        assert self.connect is not None
        if self.credentials is None:
            raise ConfigurationError("--connect needs --credentials", hint="a file made by `penstock admin client`")
        config = ClientConfig(filter=self.filter_place or AUTO, filter_delivery=cast("Wish", self.delivery))
        return connect(
            self.connect,
            credentials=self.credentials,
            interface=None if self.interface == INTERFACE else self.interface,
            secret=given_secret(self.secret),
            config=config,
        )
