"""Observers of a plant with filters. They see what is published, what applications want, and what they are told.

FilteredStoryChecker     an application's answers tell each stream's story without a hole, a repetition or a step back
FilteredContentChecker   each application gets every message it wants from when its interest holds, once, in order and
                         unchanged, or its loss is reported; and none that it does not want
FilteredCompleteness     when the network has healed, every application has everything of the streams it listens to
FilteredBoundsChecker    buffers of modules and applications stay within their limits
FilteredAccountsChecker  the accounts that modules give of packets and messages add up
FilteredLosslessChecker  where the networks are mild and buffers large, everything is repaired
FilteredSourceChecker    a stranger that sends recorded packets again does not stay the source of a stream
FilteredRequestChecker   with keys, publishers answer every request once at most
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from penstock.base.clock import NS_PER_MS, NS_PER_SECOND
from penstock.base.counters import Cause
from penstock.filter.core.ledger import Sent
from penstock.middleware import Deliver, LossReceipt, ReceiverConfig, StreamKey
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.sim.filter.wants import SentMessage, Wants
from penstock.sim.listening import Viewer
from penstock.sim.middleware.checkers import MESSAGE_CAUSES, Checker, ContentChecker, StoryChecker, _Seen, _Sent
from penstock.sim.middleware.stranger import ADDRESS as STRANGER

if TYPE_CHECKING:
    from penstock.sim.filter.plant import FilterPlant


class FilterChecker(Checker):
    """Sees, besides, what applications want."""

    def wanted(self, viewer: Viewer, number: int, wants: Wants, now_ns: int) -> None:
        """An application asks for this, by its change of this number."""

    def held(self, viewer: Viewer, number: int, now_ns: int) -> None:
        """It was told that the change holds."""

    def forgot(self, viewer: Viewer, group: int) -> None:
        """It does not listen to the group any more."""

    def step_filters(self, plant: "FilterPlant") -> None:
        """Called from time to time."""

    def finish_filters(self, plant: "FilterPlant") -> None:
        """The run is over."""


class FilteredStoryChecker(StoryChecker, FilterChecker):
    """Where a stream begins that was not listened to for a while is the filter's to say."""

    def __init__(self) -> None:
        super().__init__(joins_at_start=False)

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        if not (isinstance(instruction, LossReceipt) and instruction.cause is Cause.BEFORE_JOIN):  # known too late
            super().said(viewer, instruction, now_ns)

    def forgot(self, viewer: Viewer, group: int) -> None:
        for teller, key in list(self._stories):
            if teller == viewer and key.group == group:
                story = self._stories.pop((teller, key))
                self.require(not story.is_active, f"{viewer} forgot {key} without a word: {story}")


class _Version(msgspec.Struct):
    """What an application wanted, from when it asked for it; the filter did so at some time up to `held_ns`."""

    wants: Wants
    asked_ns: int
    held_ns: int | None = None


class FilteredContentChecker(ContentChecker, FilterChecker):
    """A message is judged by all interests that may have been in force from when it was sent until now: an application
    must get what all of them want, and may get what one of them wants."""

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
                self.require(any(wants), f"{viewer} got what it does not want: {found}, {instruction}")
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
        """Whether all interests that may have been in force want the message with this index."""
        message = self._sent[key, epoch][index]
        topic, model_id, _, payload = message.content
        found = SentMessage.of(key.group, topic, model_id, payload)
        return all(each.want(found) for each in self._in_force(viewer, self._sent_ns[key, epoch][index]))

    def removed(self, viewer: Viewer, key: StreamKey, epoch: int, first: int, last: int, now_ns: int) -> None:
        """A filter says that it has removed packets `first` to `last` on purpose."""
        self._now_ns = now_ns
        messages = self._sent[key, epoch]
        for index in range(len(messages) - 1, -1, -1):
            message = messages[index]
            if message.last < first:
                return
            if first <= message.first and message.last <= last and message.is_complete:
                is_lie = self.must_have(viewer, key, epoch, index)
                self.require(not is_lie, f"the gap {first} to {last} lies to {viewer}: {message}, {key}")

    def _require_excuse(self, viewer: Viewer, deliver: Deliver, seen: _Seen, message: _Sent) -> None:
        if self.must_have(viewer, deliver.stream, deliver.epoch, seen.next_index):
            super()._require_excuse(viewer, deliver, seen, message)

    def _is_excused(self, seen: _Seen, message: _Sent) -> bool:
        """A part of it was reported lost: the filter may have removed the rest, not knowing what it was of."""
        is_lost = any(first <= message.last and message.first <= last for first, last in seen.lost)
        return is_lost or super()._is_excused(seen, message)

    def _in_force(self, viewer: Viewer, since_ns: int) -> Iterator[Wants]:
        """The interests that the filter may have gone by at some time from `since_ns` until now."""
        versions = [self._versions[viewer][number] for number in sorted(self._versions[viewer])]
        for version, successor in zip_longest(versions, versions[1:]):
            until_ns = None if successor is None else successor.held_ns
            if until_ns is None or until_ns >= since_ns:
                yield version.wants


class FilteredCompletenessChecker(FilterChecker):
    """At the end, compares what applications say with what publishers did."""

    def __init__(self, stories: FilteredStoryChecker, contents: FilteredContentChecker) -> None:
        self._stories = stories
        self._contents = contents

    def finish_filters(self, plant: "FilterPlant") -> None:
        for application in plant.applications:
            viewer = application.viewer()
            for publisher in plant.publishers:
                for key, epoch, next_sequence, is_killed in publisher.farewells:
                    if key.group not in application.groups:
                        continue
                    story = self._stories.story(viewer, key)
                    self.require(story is not None, f"{viewer} never heard of {key}")
                    assert story is not None
                    # the last words of one that was killed may be lost, and nobody can say so
                    lacks = next_sequence - story.next_sequence
                    self.require(
                        story.epoch == epoch and (lacks == 0 or (is_killed and lacks > 0)),
                        f"{viewer} is not where {publisher.name} ended (epoch {epoch}, {next_sequence}): {story}",
                    )
                    expected = Cause.EXPIRED if is_killed else Cause.GOODBYE
                    self.require(story.ended_by == expected, f"{viewer} missed the end of {key}: {story}")
                    unseen = self._contents.unseen(viewer, key, epoch)
                    self.require(unseen == 0, f"{viewer} lacks {unseen} messages of {key}")


class FilteredBoundsChecker(FilterChecker):
    """Looks at the sizes of buffers while the run goes on."""

    def step_filters(self, plant: "FilterPlant") -> None:
        config = plant.options.filter
        for node in plant.filters:
            module = node.module()
            if module is None:
                continue
            for stream in module.receiver.streams():
                self._require_window(node.name, stream, config.receiver)
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
                self._require_window(application.name, stream, plant.options.receiver)

    def _require_window(self, name: str, stream: IncomingStream, config: ReceiverConfig) -> None:
        is_bounded = (
            stream.window_packets <= config.window_packets_max and stream.window_bytes <= config.window_bytes_max
        )
        self.require(is_bounded, f"{name} holds {stream.window_packets} packets, {stream.window_bytes} bytes")


class FilteredAccountsChecker(FilterChecker):
    """Every number is of a packet, or was removed, or is lost; nobody was sent more than there is."""

    def step_filters(self, plant: "FilterPlant") -> None:
        for node in plant.filters:
            module = node.module()
            for entry in () if module is None else module.accounts():
                self.require(entry.adds_up, f"{node.name} gives an account that does not add up: {entry}")
                if isinstance(entry, Sent):
                    self.require(entry.messages <= entry.offered, f"{node.name} has sent more than came: {entry}")

    finish_filters = step_filters


class FilteredLosslessChecker(FilterChecker):
    """No receipt is acceptable, but for fragments, for what came before the filter's word, and where the packets'
    publisher is gone and nobody else can repair: `is_repairable` says so."""

    def __init__(self, is_repairable: Callable[[StreamKey], bool]) -> None:
        self._is_repairable = is_repairable

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        if isinstance(instruction, LossReceipt):
            is_acceptable = instruction.cause in (*MESSAGE_CAUSES, Cause.BEFORE_JOIN)
            is_acceptable = is_acceptable or not self._is_repairable(instruction.stream)
            self.require(is_acceptable, f"{viewer} gave up without need: {instruction}")


class FilteredSourceChecker(FilterChecker):
    """The stranger's address does not stay the source of a stream that a module carries: on a healthy network the next
    packet of the publisher, a keep-alive at the latest, makes the publisher the source again."""

    def __init__(self) -> None:
        self._since_ns: dict[tuple[Viewer, StreamKey], int] = {}

    def step_filters(self, plant: "FilterPlant") -> None:
        now_ns = plant.world.now_ns()
        epochs = {publisher.publisher_id: publisher.epoch() for publisher in plant.publishers}
        found = set()
        for node in plant.filters if plant.is_healed else ():
            module = node.module()
            for stream in () if module is None else module.receiver.streams():
                if stream.source == STRANGER and stream.epoch == epochs.get(stream.key.publisher_id):
                    found.add((node.viewer(), stream.key))
        self._since_ns = {each: self._since_ns.get(each, now_ns) for each in found}
        limit_ns = plant.options.publisher.keep_alive_ms * NS_PER_MS + NS_PER_SECOND // 4
        for (viewer, key), since_ns in self._since_ns.items():
            self.require(now_ns - since_ns <= limit_ns, f"{viewer} takes the stranger for the source of {key}")


class FilteredRequestChecker(FilterChecker):
    """With keys, publishers answer no more requests than modules and applications sent: no forged and no recorded
    ones, and no copies that the network made."""

    def step_filters(self, plant: "FilterPlant") -> None:
        if plant.stranger is not None:
            answered = sum(publisher.counters["nacks_received"] for publisher in plant.publishers)
            sent = sum(node.counters["nacks_sent"] for node in (*plant.filters, *plant.applications))
            self.require(answered <= sent, f"{answered} requests were answered, but only {sent} were sent")
            by_filters = sum(module.counters["nacks_received"] for module in plant.filters)
            asked = sum(application.counters["nacks_sent"] for application in plant.applications)
            self.require(by_filters <= asked, f"filters answered {by_filters} requests, but only {asked} were sent")


def _number(message: _Sent) -> bytes:
    return message.content[3][:8]
