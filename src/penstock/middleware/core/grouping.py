"""Grouping of messages by multicast group, and the channels of a subscriber."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.middleware.core.batch import Packable
from penstock.middleware.core.events import OutgoingMessage
from penstock.net.udp import Channel
from penstock.topics import GroupMap, Interest


class ChosenRows:
    """A subset of a batch's messages, in the same memory."""

    def __init__(self, batch: Packable, rows: NDArray[Any]) -> None:
        self.topic_data = batch.topic_data
        self.payloads = batch.payloads
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)


def batch_by_group(batch: Packable, groups: GroupMap | None, standard: int) -> Iterator[tuple[int, Packable]]:
    """Split a batch by group, keeping the order within each group. Without a map all messages go to `standard`."""
    if groups is None:
        yield standard, batch
        return
    group_of_row = groups.groups_of_rows(batch.topic_data, batch.rows)
    for group in numpy.unique(group_of_row).tolist():
        yield group, ChosenRows(batch, batch.rows[group_of_row == group])


def messages_by_group(
    messages: Sequence[OutgoingMessage], groups: GroupMap | None, standard: int
) -> Iterator[tuple[int, Sequence[OutgoingMessage]]]:
    if groups is None:
        yield standard, messages
        return
    cut: dict[int, list[OutgoingMessage]] = {}
    for message in messages:
        cut.setdefault(groups.group_of(message.topic), []).append(message)
    yield from cut.items()


def channels_for(
    groups: GroupMap, interests: Sequence[str | Interest], *, interface: str, hops: int = 1
) -> list[Channel]:
    """Return the channels of messages for these interests, for a MulticastReceiver."""
    found = groups.groups_for(interests)
    return [Channel.of(group, groups.port, interface=interface, hops=hops) for group in found]
