"""`penstock sub --connect`: what a subscription through an administration server brings."""

import sys
from pathlib import Path

import msgspec

from penstock.cli.interrupt import interruptible
from penstock.cli.readable import printable
from penstock.cli.showing import EVERYTHING, Shown, show_session, write_told
from penstock.client import ClientConfig, Subscription, connect
from penstock.client.joining import Receipt
from penstock.client.line import Transport
from penstock.middleware import Discontinuity, LossReceipt


def show_subscription(
    url: str,
    credentials: Path,
    topics: list[str],
    *,
    where: str | None,
    image: bool,
    transport: Transport,
    interface: str | None,
    config: ClientConfig,
    shown: Shown,
) -> None:
    with (
        interruptible() as interrupt,
        connect(url, credentials=credentials, interface=interface, config=config) as client,
        client.subscribe(*(topics or [EVERYTHING]), where=where, image=image, transport=transport) as subscription,
    ):
        subscription.on_session = lambda event: show_session(event, shown.is_json)
        shown.follow(
            subscription.next,
            interrupt,
            losing=subscription,
            tell=_write_receipt,
            summary=lambda seconds: _summary(subscription, seconds),
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
