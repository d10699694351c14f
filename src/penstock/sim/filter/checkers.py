"""Checkers of a plant with filters: they observe published messages, interests of applications, and deliveries.

FilteredStoryChecker     an application's instructions cover each stream without a hole, a repetition or a step back
FilteredContentChecker   from the start of its interest, each application gets every matching message once, in order and
                         unchanged, or a report of the loss; and no other message
FilteredBoundsChecker    buffers of modules and applications stay within their limits
FilteredAccountsChecker  the modules' accounts of packets and messages have correct sums

Completeness, losslessness, sources and requests are checked by the checkers of the middleware's plant.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from penstock.base.counters import Cause
from penstock.filter.core.ledger import Sent
from penstock.middleware import Deliver, LossReceipt, StreamKey
from penstock.middleware.core.events import ReceiverInstruction
from penstock.sim.datagram_node import Viewer
from penstock.sim.filter.wants import SentMessage, Wants
from penstock.sim.middleware.behaviour_checkers import require_window
from penstock.sim.middleware.checkers import ContentChecker, StoryChecker, StreamChecker, _Seen, _Sent

if TYPE_CHECKING:
    from penstock.sim.filter.plant import FilterPlant


class FilterChecker(StreamChecker):
    """Also observes the interests of applications."""

    def wanted(self, viewer: Viewer, number: int, wants: Wants, now_ns: int) -> None:
        """An application requests these interests with a numbered change."""

    def held(self, viewer: Viewer, number: int, now_ns: int) -> None:
        """The filter confirmed the change."""

    def forgot(self, viewer: Viewer, group: int) -> None:
        """The application has left the group."""


class FilteredStoryChecker(StoryChecker, FilterChecker):
    """After a time without listening, the filter decides where a stream begins."""

    def __init__(self) -> None:
        super().__init__(joins_at_start=False)

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        if not (isinstance(instruction, LossReceipt) and instruction.cause is Cause.BEFORE_JOIN):  # known late
            super().said(viewer, instruction, now_ns)

    def forgot(self, viewer: Viewer, group: int) -> None:
        for teller, key in list(self._stories):
            if teller == viewer and key.group == group:
                story = self._stories.pop((teller, key))
                self.require(not story.is_active, f"{viewer} forgot {key} without a report: {story}")


class _Version(msgspec.Struct):
    """The interests of an application since its request; the filter applied them at some time up to `held_ns`."""

    wants: Wants
    asked_ns: int
    held_ns: int | None = None


class FilteredContentChecker(ContentChecker, FilterChecker):
    """A message is judged by all interests that may have been active since it was sent: an application must get
    messages that match all of them, and may get messages that match one of them."""

    def __init__(self) -> None:
        super().__init__()
        self._versions: dict[Viewer, dict[int, _Version]] = defaultdict(dict)
        self._sent_ns: dict[tuple[StreamKey, int], list[int]] = defaultdict(list)
        self._sent_ns_by_number: dict[tuple[int, bytes], int] = {}
        self._now_ns = 0

    def sent(self, key: StreamKey, epoch: int, data: bytes, now_ns: int) -> None:
        super().sent(key, epoch, data, now_ns)
        messages, times = self._sent[key, epoch], self._sent_ns[key, epoch]
        for message in messages[len(times) :]:
            times.append(now_ns)
            self._sent_ns_by_number[key.publisher_id, _number(message)] = now_ns

    def wanted(self, viewer: Viewer, number: int, wants: Wants, now_ns: int) -> None:
        versions = self._versions[viewer]
        if not versions:
            versions[0] = _Version(Wants(wants.application), 0, 0)
        versions[number] = _Version(wants, now_ns)

    def held(self, viewer: Viewer, number: int, now_ns: int) -> None:
        self._versions[viewer][number].held_ns = now_ns

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        self._now_ns = now_ns
        if isinstance(instruction, Deliver):
            for message in instruction.messages:
                payload = bytes(message.payload)
                sent_ns = self._sent_ns_by_number.get((instruction.stream.publisher_id, payload[:8]), now_ns)
                found = SentMessage.of(instruction.stream.group, message.topic, message.model_id, payload)
                wants = [each.want(found) for each in self._in_force(viewer, sent_ns)]
                self.require(any(wants), f"{viewer} received a message outside its interests: {found}, {instruction}")
        super().said(viewer, instruction, now_ns)

    def forgot(self, viewer: Viewer, group: int) -> None:
        for seen in [each for each in self._seen if each[0] == viewer and each[1].group == group]:
            del self._seen[seen]

    def unseen(self, viewer: Viewer, key: StreamKey, epoch: int) -> int:
        seen = self._seen.get((viewer, key, epoch))
        first = seen.next_index if seen is not None else 0
        lacking = 0
        for index, message in enumerate(self._sent[key, epoch][first:], start=first):
            is_excused = seen is not None and self._is_excused(seen, message)
            lacking += not is_excused and self.must_have(viewer, key, epoch, index)
        return lacking

    def must_have(self, viewer: Viewer, key: StreamKey, epoch: int, index: int) -> bool:
        """True if the message with this index matches all interests that may have been in force."""
        message = self._sent[key, epoch][index]
        topic, model_id, _, payload = message.content
        found = SentMessage.of(key.group, topic, model_id, payload)
        return all(each.want(found) for each in self._in_force(viewer, self._sent_ns[key, epoch][index]))

    def removed(self, viewer: Viewer, key: StreamKey, epoch: int, first: int, last: int, now_ns: int) -> None:
        """A filter reports that it has removed packets `first` to `last` on purpose."""
        self._now_ns = now_ns
        messages = self._sent[key, epoch]
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.last < first:
                return
            if first <= message.first and message.last <= last and message.is_complete:
                is_lie = self.must_have(viewer, key, epoch, index)
                self.require(not is_lie, f"the gap {first} to {last} is wrong for {viewer}: {message}, {key}")

    def _require_excuse(self, viewer: Viewer, deliver: Deliver, seen: _Seen, message: _Sent) -> None:
        if self.must_have(viewer, deliver.stream, deliver.epoch, seen.next_index):
            super()._require_excuse(viewer, deliver, seen, message)

    def _is_excused(self, seen: _Seen, message: _Sent) -> bool:
        """A part was reported lost, as packets or as fragments: the filter may have removed the rest, because it no
        longer kept the first fragment and did not know the message."""
        receipts = (*seen.lost, *seen.broken)
        is_lost = any(first <= message.last and message.first <= last for first, last in receipts)
        return is_lost or super()._is_excused(seen, message)

    def _in_force(self, viewer: Viewer, since_ns: int) -> Iterator[Wants]:
        """The interests that the filter may have applied at some time from `since_ns` until now."""
        versions = [self._versions[viewer][number] for number in sorted(self._versions[viewer])]
        for version, successor in zip_longest(versions, versions[1:]):
            until_ns = None if successor is None else successor.held_ns
            if until_ns is None or until_ns >= since_ns:
                yield version.wants


class FilteredBoundsChecker(FilterChecker):
    """Checks the sizes of buffers during the run."""

    def step(self, plant: "FilterPlant") -> None:
        config = plant.options.filter
        for node in plant.filters:
            module = node.module()
            if module is None:
                continue
            for stream in module.receiver.streams():
                require_window(self, node.name, stream, config.receiver)
            for carried in module.streams():
                kept = carried.kept
                is_bounded = kept is None or (
                    len(kept) <= config.kept_packets_max and kept.bytes_kept <= config.kept_bytes_max
                )
                self.require(is_bounded, f"{node.name} keeps {kept}")
            is_known = set(module.applications) == set(node.registered)
            self.require(is_known, f"{node.name} serves {module.applications}, not {list(node.registered)}")
        for application in plant.applications:
            for stream in application.streams():
                require_window(self, application.name, stream, plant.options.receiver)


class FilteredAccountsChecker(FilterChecker):
    """Every number belongs to a packet, or was removed or lost; no consumer was sent more packets than exist."""

    def step(self, plant: "FilterPlant") -> None:
        for node in plant.filters:
            module = node.module()
            for entry in () if module is None else module.accounts():
                self.require(entry.adds_up, f"{node.name} reports an account with a wrong sum: {entry}")
                if isinstance(entry, Sent):
                    self.require(
                        entry.messages <= entry.offered, f"{node.name} has sent more packets than it received: {entry}"
                    )

    finish = step


def _number(message: _Sent) -> bytes:
    return message.content[3][:8]


class FilteredRequestChecker(FilterChecker):
    """Compares the requests that filters answered with those that applications sent."""

    def step(self, plant: "FilterPlant") -> None:
        if plant.stranger is not None:
            answered = sum(module.counters["nacks_received"] for module in plant.filters)
            sent = sum(application.counters["nacks_sent"] for application in plant.applications)
            self.require(answered <= sent, f"filters answered {answered} requests, but only {sent} were sent")
