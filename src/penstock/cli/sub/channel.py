"""`penstock sub` on a multicast channel, directly or through a filter module."""

import re
import sys
import time
from pathlib import Path
from typing import cast

import typer

from penstock.base.counters import Cause
from penstock.base.errors import ConfigurationError
from penstock.base.log import logger
from penstock.cli.clock import compare_clocks
from penstock.cli.common.channel import CHANNEL
from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.cli.model import find_model
from penstock.cli.sub.options import SubOptions
from penstock.cli.sub.output import EVERYTHING, SilenceNotice
from penstock.cli.sub.views import JsonView, PrettyView, QuietView, View
from penstock.client.latency import LatencyMeter
from penstock.client.selection import Selection
from penstock.filter.client import FilteredReceiver
from penstock.filter.client.discovery import AUTO, NONE, find_filter
from penstock.filter.core.control import PORT_DEFAULT, Wish
from penstock.middleware import Deliver, DeliverBatch, ReceiverConfig
from penstock.middleware.core.grouping import channels_for
from penstock.middleware.live.receiver import MulticastReceiver, SocketReceiver
from penstock.model import MessageModel
from penstock.net.udp import Address, Channel
from penstock.topics import GroupMap

log = logger("sub")

LOOK_SECONDS = 0.2
CLOCK_EXCHANGES = 16
CHANNEL_LIKE = re.compile(r"[0-9]+(\.[0-9]+){3}(:.*)?|[^*>!/]+:[0-9]+")
"""An address, valid or not; Channel.parse() reports errors in it."""


def show_channel(options: SubOptions) -> None:
    module = find_filter(options.filter_place or NONE)
    channels, patterns = _channels(options, is_filtered=module is not None)
    if options.clock is not None and not options.latency:
        raise ConfigurationError("--clock needs --latency")
    model = find_model(options.model)
    clock = options.clock
    compare = None if clock is None else lambda: compare_clocks(clock, CLOCK_EXCHANGES)
    meter = LatencyMeter(model, compare) if options.latency else None
    selection = Selection(patterns or [EVERYTHING], options.where, model)
    view = JsonView(model) if options.json else QuietView() if options.quiet else PrettyView(model)
    started = time.monotonic()
    if module is None:
        receiver: SocketReceiver = MulticastReceiver(
            channels, config=_config(options), spin=options.spin, loss=options.loss
        )
        place = str(channels[0]) if options.group_map is None else f"{len(channels)} groups of {options.group_map}"
    else:
        receiver = _filtered_receiver(module, options, channels, patterns, model)
        selection.address = receiver.address
        place = f"the filter at {module[0]}:{module[1]}"
    with interruptible() as interrupt, receiver:
        log.info("listening", channel=place, patterns=" ".join(patterns or [EVERYTHING]))
        silence = SilenceNotice(lambda: _explain_silence(receiver, place, patterns, options))
        _show(receiver, selection, view, meter, silence, interrupt, options.count, started + options.seconds)
    _write_summary(receiver, selection, view, place, time.monotonic() - started)
    if meter is not None:
        sys.stderr.write(f"{meter.summary()}\n")
    if not view.shown:
        raise typer.Exit(1)


def _channels(options: SubOptions, *, is_filtered: bool) -> tuple[list[Channel], list[str]]:
    """Return the channels to receive, and the patterns: the arguments without a channel. A filter module knows its
    channels."""
    patterns = list(options.arguments or ())
    is_named = bool(patterns) and CHANNEL_LIKE.fullmatch(patterns[0]) is not None
    if options.group_map is not None:
        return _mapped_channels(options.group_map, patterns, options.interface, is_named=is_named), patterns
    if is_filtered and not is_named:
        return [], patterns
    return [Channel.parse(patterns.pop(0) if is_named else CHANNEL, interface=options.interface)], patterns


def _mapped_channels(path: Path, patterns: list[str], interface: str, *, is_named: bool) -> list[Channel]:
    if is_named:
        raise ConfigurationError("a channel and --map exclude each other", hint="the map has the channels")
    return channels_for(GroupMap.load(path), Selection.interests(patterns), interface=interface)


def _config(options: SubOptions) -> ReceiverConfig:
    return ReceiverConfig(join="start" if options.from_start else "live", accept=options.accept)


def _filtered_receiver(
    module: Address, options: SubOptions, channels: list[Channel], patterns: list[str], model: MessageModel
) -> FilteredReceiver:
    """A receiver whose filter module selects by the patterns and the condition."""
    receiver = FilteredReceiver(
        module,
        [str(interest) for interest in Selection.interests(patterns)],
        where=options.where or "",
        channels=[str(channel) for channel in channels],
        delivery=cast(Wish, options.delivery),
        name="penstock-sub",
        models=lambda model_id, version: model if model_id == model.id else None,
        documents=lambda: [model.text],
        config=_config(options),
        spin=options.spin,
        loss=options.loss,
    )
    sys.stderr.write(f"-- messages to this application alone: {receiver.address}\n")
    return receiver


def _show(
    receiver: SocketReceiver,
    selection: Selection,
    view: View,
    meter: LatencyMeter | None,
    silence: SilenceNotice,
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
        silence.check(view.shown)
    silence.check(view.shown, is_end=True)
    return None


def _explain_silence(receiver: SocketReceiver, place: str, patterns: list[str], options: SubOptions) -> str:
    if delivered := receiver.counters["messages_delivered"]:
        return f"{delivered:,} messages arrived from {place}, none of them on {' '.join(patterns)}" + (
            f" with {options.where}" if options.where else ""
        )
    missing = f"no filter module answers at 127.0.0.1:{PORT_DEFAULT}, and " if options.filter_place == AUTO else ""
    return (
        f"{missing}nothing arrives from {place}; `penstock pub` publishes there, "
        "and the streams of a plant need --connect and --credentials"
    )


def _write_summary(receiver: SocketReceiver, selection: Selection, view: View, place: str, ran_seconds: float) -> None:
    counters = receiver.counters
    causes = counters.by_cause("packets_dropped")
    causes.pop(Cause.DUPLICATE, None)  # publishers repeat their goodbye
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
