"""`penstock sub`: show what flows on a channel."""

import re
import sys
import time
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, cast, get_args

import typer

from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.cli.channel import CHANNEL, INTERFACE, FromStartOption, InterfaceOption, MapOption
from penstock.cli.filtering import filtered_receiver
from penstock.cli.interrupt import Interrupt, interruptible
from penstock.cli.latency import LatencyMeter
from penstock.cli.model import find_model
from penstock.cli.noded import NodeWish, show_node
from penstock.cli.selection import EVERYTHING, Selection
from penstock.cli.show import JsonView, PrettyView, QuietView, View
from penstock.cli.showing import Shown
from penstock.cli.subscribed import show_subscription
from penstock.cli.treed import TreeWish, show_stream
from penstock.client import ClientConfig
from penstock.client.line import Transport
from penstock.filter.application.finding import AUTO, NONE, find_filter
from penstock.filter.control import Wish
from penstock.middleware import Deliver, DeliverBatch, ReceiverConfig
from penstock.middleware.grouping import channels_for
from penstock.middleware.receiving_driver import MulticastReceiver, SocketReceiver
from penstock.net.udp import Channel
from penstock.topics import GroupMap
from penstock.tree.control import Class

log = logger("sub")

Accept: TypeAlias = Literal["live", "replay", "both"]

LOOK_SECONDS = 0.2
CHANNEL_LIKE = re.compile(r"[0-9]+(\.[0-9]+){3}(:.*)?|[^*>!/]+:[0-9]+")
"""An address, right or wrong; Channel.parse() says what is wrong with it."""


def sub(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CHANNEL] [PATTERN]...",
            help="A multicast group and port, then what to show: md.us.>, md.*.quote, '!md.us.eq.ZZ*.>', …",
        ),
    ] = None,
    interface: InterfaceOption = INTERFACE,
    group_map: MapOption = None,
    where: Annotated[str | None, typer.Option(help="Only messages that meet this SQL condition on --model.")] = None,
    model: Annotated[str, typer.Option(help="The model of --where, and how to read its messages.")] = "quote",
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for programs.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Only a line per second, and the summary.")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="End after so long.")] = float("inf"),
    from_start: FromStartOption = False,
    accept: Annotated[
        Accept, typer.Option(help="What is shown: what is live, what `pipeline replay` plays from the past, or both.")
    ] = "live",
    spin: Annotated[bool, typer.Option(help="Wait by looking again and again: quicker, a whole core.")] = False,
    loss: Annotated[float, typer.Option(min=0.0, max=0.9, help="Share of datagrams to throw away on purpose.")] = 0.0,
    latency: Annotated[
        bool, typer.Option("--latency", help="Say how old the messages of --model were, by their event_time.")
    ] = False,
    clock: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where `penstock clock serve` runs on the host that made event_time."),
    ] = None,
    filter_place: Annotated[
        str | None,
        typer.Option(
            "--filter",
            metavar="HOST:PORT",
            help="Through this filter module; auto, as with --connect unless told: the host's if there is one; none.",
        ),
    ] = None,
    delivery: Annotated[
        str, typer.Option(help="Of --filter: how packets come.", metavar="unicast|ring|shared")
    ] = "unicast",
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="HOST:PORT",
            help="Through this distribution node; auto: the host's.",
        ),
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Of a node: the newest records as they change, not every message.")
    ] = False,
    metered: Annotated[
        float | None,
        typer.Option(
            "--metered",
            metavar="RATE",
            min=0.0,
            help="Of a node: no more per second of each topic.",
        ),
    ] = None,
    offload: Annotated[
        bool, typer.Option("--offload", help="Of a node: a process of its own checks, filters and converts.")
    ] = False,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Through this agent of a tree; repeated: others in its place."),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            metavar="WHEN", help="Of --agent: live, oldest, after a sequence, how long ago (6h), 2026-01-31T09:30."
        ),
    ] = "live",
    cls: Annotated[
        str,
        typer.Option("--class", metavar="lossless|conflating|disconnect", help="Of --agent: when it is too slow."),
    ] = "lossless",
    tree: Annotated[str, typer.Option(help="Of --agent: the tree's name.")] = "tree",
    infostream: Annotated[bool, typer.Option("--infostream", help="Of --agent: show what agents say, too.")] = False,
    connect: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Subscribe through the administration server at penstock://HOST:PORT."),
    ] = None,
    credentials: Annotated[Path | None, typer.Option(help="Of --connect: the file that says who you are.")] = None,
    image: Annotated[bool, typer.Option("--image", help="Of --connect: begin with the current state.")] = False,
    transport: Annotated[
        str, typer.Option(help="Of --connect: auto, multicast or tcp.", metavar="auto|multicast|tcp")
    ] = "auto",
) -> None:
    """Show the messages on a channel, and in their place what was lost. Ctrl-C ends it with a summary."""
    if json and quiet:
        raise ConfigurationError("--json and --quiet do not go together")
    words = list(arguments or [])
    shown = Shown(json, quiet, count, seconds)
    if delivery not in get_args(Wish):
        raise ConfigurationError(f"{delivery!r} is no delivery", hint="use unicast, ring or shared")
    if agent:
        if cls not in get_args(Class):
            raise ConfigurationError(f"{cls!r} is no class", hint="use lossless, conflating or disconnect")
        tree_wish = TreeWish(tuple(agent), tuple(words), where, since, cast(Class, cls), tree, infostream)
        return show_stream(tree_wish, connect, credentials, shown=shown)
    if node is not None or records or metered is not None:
        wish = NodeWish(node or AUTO, tuple(words), where, records, metered, offload)
        return show_node(wish, connect, credentials, shown=shown)
    if connect is not None:
        if credentials is None:
            raise ConfigurationError("--connect needs --credentials", hint="a file made by `penstock admin client`")
        if latency or loss or spin or from_start or group_map or accept != "live":
            raise ConfigurationError(
                "--latency, --loss, --spin, --from-start, --map and --accept are for channels, not for --connect"
            )
        if transport not in get_args(Transport):
            raise ConfigurationError(f"{transport!r} is no transport", hint="use auto, multicast or tcp")
        return show_subscription(
            connect,
            credentials,
            words,
            where=where,
            image=image,
            transport=cast(Transport, transport),
            interface=None if interface == INTERFACE else interface,
            config=ClientConfig(filter=filter_place or AUTO, filter_delivery=cast(Wish, delivery)),
            shown=shown,
        )
    module = find_filter(filter_place or NONE)
    channels = _channels(words, group_map, interface, is_filtered=module is not None)
    if clock is not None and not latency:
        raise ConfigurationError("--clock means nothing without --latency")
    chosen_model = find_model(model)
    meter = LatencyMeter(chosen_model, clock) if latency else None
    selection = Selection(words or [EVERYTHING], where, chosen_model)
    view = JsonView(chosen_model) if json else QuietView() if quiet else PrettyView(chosen_model)
    config = ReceiverConfig(join="start" if from_start else "live", accept=accept)
    started = time.monotonic()
    receiver: SocketReceiver
    if module is None:
        receiver = MulticastReceiver(channels, config=config, spin=spin, loss=loss)
        place = str(channels[0]) if group_map is None else f"{len(channels)} groups of {group_map}"
    else:
        receiver = filtered_receiver(
            module, words, channels, where, cast(Wish, delivery), chosen_model, config, spin=spin, loss=loss
        )
        selection.address = receiver.address
        place = f"the filter at {module[0]}:{module[1]}"
    with interruptible() as interrupt, receiver:
        log.info("listening", channel=place, patterns=" ".join(words or [EVERYTHING]))
        _show(receiver, selection, view, meter, interrupt, count, started + seconds)
    _conclude(receiver, selection, view, place, time.monotonic() - started)
    if meter is not None:
        sys.stderr.write(f"{meter.summary()}\n")


def _channels(words: list[str], group_map: Path | None, interface: str, *, is_filtered: bool) -> list[Channel]:
    """What is to be listened to; a channel among the words is taken from them. A filter knows by itself."""
    is_named = bool(words) and CHANNEL_LIKE.fullmatch(words[0]) is not None
    if group_map is None:
        if is_filtered and not is_named:
            return []
        return [Channel.parse(words.pop(0) if is_named else CHANNEL, interface=interface)]
    if is_named:
        raise ConfigurationError("a channel and --map do not go together", hint="the map says where topics flow")
    return channels_for(GroupMap.load(group_map), Selection.interests(words), interface=interface)


def _show(
    receiver: SocketReceiver,
    selection: Selection,
    view: View,
    meter: LatencyMeter | None,
    interrupt: Interrupt,
    count: int | None,
    deadline: float,
) -> None:
    while not interrupt.is_wanted and (left := deadline - time.monotonic()) > 0:
        for each in receiver.receive(min(left, LOOK_SECONDS)):
            if not isinstance(each, Deliver | DeliverBatch):
                view.event(each)
                continue
            if meter is not None:
                meter.take(each)
            for message in selection.wanted(each):
                view.message(message, each)
                if view.shown == count:
                    return view.flush()
        view.flush()
    return None


def _conclude(receiver: SocketReceiver, selection: Selection, view: View, place: str, ran_seconds: float) -> None:
    counters = receiver.counters
    causes = counters.by_cause("packets_dropped")
    causes.pop(Cause.DUPLICATE, None)  # a goodbye is said several times
    dropped = ", ".join(f"{number:,} {cause}" for cause, number in sorted(causes.items()))
    parts = [
        f"{view.shown:,} of {counters['messages_delivered']:,} messages shown in {ran_seconds:.1f} s on {place}",
        f"{counters['packets_lost']:,} packets lost, {counters['repairs_received']:,} repaired",
    ]
    if discarded := counters["datagrams_discarded"]:
        parts.append(f"{discarded:,} datagrams discarded on purpose")
    if dropped:
        parts.append(f"dropped: {dropped}")
    if selection.malformed_count:
        parts.append(f"{selection.malformed_count:,} malformed messages not shown")
    sys.stdout.flush()
    sys.stderr.write("; ".join(parts) + "\n")
