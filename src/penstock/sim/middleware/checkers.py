"""Checkers of streams: they observe published messages, sent packets and the instructions of receivers.

StoryChecker         a receiver's instructions cover each stream without a hole, a repetition or a step back
ContentChecker       each message is sent as it was published, and arrives once, in order, unchanged, or its loss was
                     reported
CompletenessChecker  after the faults of the network, every receiver has every message, and has reported the end of
                     every stream that ended

The behaviour of nodes during the run (bounds, pace, punctuality) is checked in behaviour_checkers.py.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from penstock.base.counters import Cause
from penstock.middleware import Deliver, LossReceipt, OutgoingMessage, StreamEnded, StreamKey, StreamStarted
from penstock.middleware.core.events import ReceiverInstruction
from penstock.sim.checker import Checker
from penstock.sim.datagram_node import DatagramNode, Viewer
from penstock.wire import MessageFlag, PacketMessage, decode

if TYPE_CHECKING:
    from penstock.sim.middleware.stream_plant import StreamPlant

MESSAGE_CAUSES = (Cause.FRAGMENT, Cause.LENGTH)
"""Causes of receipts for one message instead of packets."""


class StreamChecker(Checker):
    """Observes publishers and receivers of streams."""

    def published(self, key: StreamKey, epoch: int, message: OutgoingMessage, now_ns: int) -> None:
        """An application published a message."""

    def sent(self, key: StreamKey, epoch: int, data: bytes, now_ns: int) -> None:
        """A publisher sent a packet for the first time."""

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        """A receiver returned an instruction."""


class _Story(msgspec.Struct):
    epoch: int
    next_sequence: int
    is_active: bool
    ended_by: Cause | None = None


class StoryChecker(StreamChecker):
    """For each receiver and stream: the position up to which the story is complete."""

    def __init__(self, *, joins_at_start: bool) -> None:
        self._joins_at_start = joins_at_start
        self._stories: dict[tuple[Viewer, StreamKey], _Story] = {}

    def story(self, viewer: Viewer, key: StreamKey) -> _Story | None:
        return self._stories.get((viewer, key))

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        match instruction:
            case StreamStarted():
                self._start(viewer, instruction)
            case Deliver():
                self._go_on(viewer, instruction, instruction.first, instruction.sequence)
            case LossReceipt() if instruction.cause not in MESSAGE_CAUSES:
                self._go_on(viewer, instruction, instruction.first, instruction.last)
            case StreamEnded():
                story = self._told(viewer, instruction)
                self.require(
                    story.next_sequence == instruction.next_sequence, f"{viewer} ends elsewhere: {instruction}, {story}"
                )
                story.is_active, story.ended_by = False, instruction.cause

    def _start(self, viewer: Viewer, started: StreamStarted) -> None:
        before = self._stories.get((viewer, started.stream))
        if before is None:
            self.require(started.first == 1 or not self._joins_at_start, f"{viewer} joins late: {started}")
        else:
            self.require(not before.is_active, f"{viewer} starts twice: {started}, {before}")
            self.require(started.epoch >= before.epoch, f"{viewer} steps back: {started}, {before}")
            expected = before.next_sequence if started.epoch == before.epoch else 1
            self.require(started.first == expected, f"{viewer} resumes elsewhere: {started}, {before}")
        self._stories[viewer, started.stream] = _Story(started.epoch, started.first, True)

    def _go_on(self, viewer: Viewer, instruction: Deliver | LossReceipt, first: int, last: int) -> None:
        story = self._told(viewer, instruction)
        self.require(first == story.next_sequence and last >= first, f"{viewer} leaves a hole: {instruction}, {story}")
        story.next_sequence = last + 1

    def _told(self, viewer: Viewer, instruction: Deliver | LossReceipt | StreamEnded) -> _Story:
        story = self._stories.get((viewer, instruction.stream))
        is_told = story is not None and story.is_active and story.epoch == instruction.epoch
        self.require(is_told, f"{viewer} reports on a stream that is not in progress: {instruction}, {story}")
        assert story is not None
        return story


Content: TypeAlias = tuple[str, int, int, bytes]
"""Topic, model, model version and payload."""


class _Sent(msgspec.Struct):
    """A sent message: its content, and its packets."""

    content: Content
    first: int
    last: int
    is_complete: bool


class _Seen(msgspec.Struct):
    """The part of a stream's epoch that one receiver has seen."""

    joined: int
    next_index: int
    lost: list[tuple[int, int]]
    broken: list[tuple[int, int]]


class ContentChecker(StreamChecker):
    """Records every sent message, and the receivers of each."""

    def __init__(self) -> None:
        self._published: dict[tuple[StreamKey, int], list[Content]] = defaultdict(list)
        self._sent: dict[tuple[StreamKey, int], list[_Sent]] = defaultdict(list)
        self._seen: dict[tuple[Viewer, StreamKey, int], _Seen] = {}
        self.delivered = 0

    def published(self, key: StreamKey, epoch: int, message: OutgoingMessage, now_ns: int) -> None:
        content = (message.topic, message.model_id, message.model_version, bytes(message.payload))
        self._published[key, epoch].append(content)

    def sent(self, key: StreamKey, epoch: int, data: bytes, now_ns: int) -> None:
        packet = decode(data)
        messages = self._sent[key, epoch]
        for message in packet:
            topic, model_id, model_version, payload = _content(message)
            is_complete = not message.flags & MessageFlag.MORE
            if message.flags & MessageFlag.CONTINUATION:
                begun = messages[-1]
                begun.content = (topic, model_id, model_version, begun.content[3] + payload)
                begun.last, begun.is_complete = packet.sequence, is_complete
            else:
                content = (topic, model_id, model_version, payload)
                messages.append(_Sent(content, packet.sequence, packet.sequence, is_complete))
            if is_complete:
                published = self._published[key, epoch][len(messages) - 1]
                self.require(
                    messages[-1].content == published,
                    f"{key} sent a packet with unpublished messages: {packet.sequence}",
                )

    def unsent(self, key: StreamKey, epoch: int) -> int:
        """Number of messages that were published and not sent."""
        return len(self._published[key, epoch]) - sum(each.is_complete for each in self._sent[key, epoch])

    def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
        match instruction:
            case StreamStarted():
                joined = _Seen(instruction.first, 0, [], [])
                seen = self._seen.setdefault((viewer, instruction.stream, instruction.epoch), joined)
                if seen is joined:
                    self._skip_what_was_before(seen, instruction)
            case LossReceipt():
                seen = self._seen[viewer, instruction.stream, instruction.epoch]
                is_message = instruction.cause in MESSAGE_CAUSES
                (seen.broken if is_message else seen.lost).append((instruction.first, instruction.last))
            case Deliver():
                self._check(viewer, instruction)

    def unseen(self, viewer: Viewer, key: StreamKey, epoch: int) -> int:
        """Number of the epoch's messages that this receiver neither received nor reported lost."""
        seen = self._seen.get((viewer, key, epoch))
        messages = self._sent[key, epoch]
        if seen is None:
            return len(messages)
        return sum(not self._is_excused(seen, message) for message in messages[seen.next_index :])

    def _skip_what_was_before(self, seen: _Seen, started: StreamStarted) -> None:
        messages = self._sent[started.stream, started.epoch]
        while seen.next_index < len(messages) and messages[seen.next_index].first < started.first:
            seen.next_index += 1

    def _check(self, viewer: Viewer, deliver: Deliver) -> None:
        seen = self._seen[viewer, deliver.stream, deliver.epoch]
        messages = self._sent[deliver.stream, deliver.epoch]
        for message in deliver.messages:
            content = _content(message)
            while seen.next_index < len(messages) and messages[seen.next_index].content != content:
                self._require_excuse(viewer, deliver, seen, messages[seen.next_index])
                seen.next_index += 1
            self.require(
                seen.next_index < len(messages),
                f"{viewer} got a duplicate, reordered or unpublished message: {deliver}",
            )
            sent = messages[seen.next_index]
            self.require(sent.last == deliver.sequence, f"{viewer} got a message in another packet: {deliver}, {sent}")
            seen.next_index += 1
            self.delivered += 1
        while seen.next_index < len(messages):
            sent = messages[seen.next_index]
            if sent.last > deliver.sequence or not sent.is_complete:
                break
            self._require_excuse(viewer, deliver, seen, sent)
            seen.next_index += 1

    def _require_excuse(self, viewer: Viewer, deliver: Deliver, seen: _Seen, message: _Sent) -> None:
        where = f"packets {message.first} to {message.last}"
        self.require(self._is_excused(seen, message), f"{viewer} silently skipped the message in {where}: {deliver}")

    def _is_excused(self, seen: _Seen, message: _Sent) -> bool:
        """True if the whole message was reported lost, or one part as lost and the rest as incomplete."""
        if message.first < seen.joined:
            return True
        lost = sum(max(0, min(last, message.last) - max(first, message.first) + 1) for first, last in seen.lost)
        size = message.last - message.first + 1
        is_broken = any(message.first <= first and last <= message.last for first, last in seen.broken)
        return lost == size or (lost > 0 and is_broken)


class CompletenessChecker(StreamChecker):
    """At the end, compares the output of `receivers` with the input of the publishers. `excuses_last_words`: the
    last packets of a killed publisher may be missing without a receipt.
    """

    def __init__(
        self,
        stories: StoryChecker,
        contents: ContentChecker,
        receivers: Sequence[DatagramNode],
        *,
        excuses_last_words: bool = False,
    ) -> None:
        self._stories = stories
        self._contents = contents
        self._receivers = receivers
        self._excuses_last_words = excuses_last_words

    def finish(self, plant: "StreamPlant[Any, Any]") -> None:
        for receiver in self._receivers:
            for publisher in plant.publishers:
                for farewell in publisher.farewells:
                    if receiver.listens_to(farewell[0].group):
                        self._judge(receiver.viewer(), publisher.name, *farewell)

    def _judge(
        self, viewer: Viewer, publisher: str, key: StreamKey, epoch: int, next_sequence: int, is_killed: bool
    ) -> None:
        story = self._stories.story(viewer, key)
        self.require(story is not None, f"{viewer} never heard of {key}")
        assert story is not None
        lacks = next_sequence - story.next_sequence
        is_there = lacks == 0 or (self._excuses_last_words and is_killed and lacks > 0)
        self.require(
            story.epoch == epoch and is_there,
            f"{viewer} is not where {publisher} ended (epoch {epoch}, {next_sequence}): {story}",
        )
        expected = Cause.EXPIRED if is_killed else Cause.GOODBYE
        self.require(story.ended_by == expected, f"{viewer} missed the end of {key}: {story}")
        self.require(not self._contents.unsent(key, epoch), f"{key} has unsent messages")
        unseen = self._contents.unseen(viewer, key, epoch)
        self.require(unseen == 0, f"{viewer} lacks {unseen} messages of {key}")


def _content(message: PacketMessage) -> Content:
    return message.topic, message.model_id, message.model_version, bytes(message.payload)
