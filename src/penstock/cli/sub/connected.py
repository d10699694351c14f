"""`penstock sub --connect`: a subscription through an administration server."""

import sys
from typing import cast, get_args

import msgspec

from penstock.base.errors import ConfigurationError
from penstock.base.readable import printable
from penstock.cli.common.interrupt import interruptible
from penstock.cli.sub.options import SubOptions
from penstock.cli.sub.output import show_session, write_told
from penstock.client import Subscription
from penstock.client.feed_subscription import Transport
from penstock.client.joining import Receipt
from penstock.middleware import Discontinuity, LossReceipt


def show_subscription(options: SubOptions) -> None:
    _refuse_channel_options(options)
    if options.transport not in get_args(Transport):
        raise ConfigurationError(f"{options.transport!r} is not a transport", hint="use auto, multicast or tcp")
    transport = cast(Transport, options.transport)
    with (
        interruptible() as interrupt,
        options.connected() as client,
        client.subscribe(
            *options.topics, where=options.where, image=options.image, transport=transport
        ) as subscription,
    ):
        subscription.on_session = lambda event: show_session(event, options.json)
        options.output.follow(
            subscription.next,
            interrupt,
            losing=subscription,
            tell=_write_receipt,
            summary=lambda seconds: _summary(subscription, seconds),
            explain_silence=lambda: _explain_silence(options),
        )


def _refuse_channel_options(options: SubOptions) -> None:
    if (
        options.latency
        or options.loss
        or options.spin
        or options.from_start
        or options.group_map
        or options.accept != "live"
    ):
        raise ConfigurationError(
            "--latency, --loss, --spin, --from-start, --map and --accept are for channels, not for --connect"
        )


def _write_receipt(receipt: Receipt, is_json: bool) -> None:
    if is_json:
        names = {"MergeGap": "gap", "Discontinuity": "discontinuity", "LossReceipt": "loss"}
        write_told({names[type(receipt).__name__]: msgspec.to_builtins(receipt)})
    elif isinstance(receipt, Discontinuity):
        sys.stderr.write(
            f"-- source stream {receipt.stream_id} goes on after {receipt.message_sequence}: "
            f"{printable(receipt.reason)}\n"
        )
    else:
        what = "packets" if isinstance(receipt, LossReceipt) else f"messages of source stream {receipt.stream_id}:"
        sys.stderr.write(f"-- lost {what} {receipt.first} to {receipt.last}: {receipt.cause}\n")


def _explain_silence(options: SubOptions) -> str:
    return (
        f"no feed has published on {' '.join(options.topics)} since the subscription began; "
        f"an operator sees the feeds by `penstock admin status --connect {options.connect} --credentials FILE`, "
        "--image begins with the current state"
    )


def _summary(subscription: Subscription, ran_seconds: float) -> str:
    counted = subscription.statistics()
    parts = [
        f"{counted.messages:,} messages in {ran_seconds:.1f} s",
        f"{counted.duplicates:,} copies suppressed, {counted.lost:,} lost, {counted.repairs:,} packets repaired",
    ]
    if counted.discontinuities:
        parts.append(f"{counted.discontinuities:,} discontinuities")
    if counted.refused or counted.unreadable:
        parts.append(f"{counted.refused:,} not granted, {counted.unreadable:,} unreadable")
    return "; ".join(parts)
