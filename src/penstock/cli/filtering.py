"""The receiver of `penstock sub --filter`."""

import sys
from collections.abc import Sequence

from penstock.cli.selection import Selection
from penstock.filter.application import FilteredReceiver
from penstock.filter.control import Wish
from penstock.middleware import ReceiverConfig
from penstock.model import MessageModel
from penstock.net.udp import Address, Channel


def filtered_receiver(
    module: Address,
    patterns: Sequence[str],
    channels: Sequence[Channel],
    where: str | None,
    delivery: Wish,
    model: MessageModel,
    config: ReceiverConfig,
    *,
    spin: bool,
    loss: float,
) -> FilteredReceiver:
    """One that has the filter choose what the patterns and the condition want."""
    receiver = FilteredReceiver(
        module,
        [str(interest) for interest in Selection.interests(patterns)],
        where=where or "",
        channels=[str(channel) for channel in channels],
        delivery=delivery,
        name="penstock-sub",
        models=lambda model_id, version: model if model_id == model.id else None,
        documents=lambda: [model.text],
        config=config,
        spin=spin,
        loss=loss,
    )
    sys.stderr.write(f"-- messages to this application alone: {receiver.address}\n")
    return receiver
