"""Checkers of a feed: they observe messages and roles of adapters, and deliveries to subscribers.

NumberChecker        in a lineage, a number has one content, from any adapter (SYNC-2): the content made by a converter
                     that missed nothing, unless a loss was reported
TermChecker          no two adapters are active in one term, terms are on the disk before they are used, and an adapter
                     that receives a higher term is no longer active
PromotionChecker     no adapter continues without a report if its conversion state differs
StoryChecker         each subscriber gets every message once and in order, or a report of the loss
LosslessChecker      if only active adapters with synchronised backups fail, no message is lost, and no event is
                     reported except the start, new sessions, and the end of the takeovers that one lineage has room for
LivenessChecker      after the faults there is one active adapter, all others are synchronised, and every subscriber is
                     up to date
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.feed.core.events import RoleChanged
from penstock.feed.core.sync.messages import SyncMessage
from penstock.middleware import Discontinuity, MergeGap, SessionEvent
from penstock.middleware.core.source_stream import END_INDEX, DiscontinuityNote
from penstock.sim.checker import Checker
from penstock.sim.datagram_node import Viewer
from penstock.sim.feed.exchange import Made
from penstock.sim.feed.packables import ApplicationMessage
from penstock.sim.fencing import FencingChecker
from penstock.wire import Origin, OriginFlag
from penstock.wire.term import SESSION_TAG_SHIFT, TAKEOVERS_MAX, Term, lineage

if TYPE_CHECKING:
    from penstock.sim.feed.nodes import AdapterNode
    from penstock.sim.feed.plant import FeedPlant

STEP_DOWN_NS_MAX = 50 * NS_PER_MS


class FeedChecker(Checker):
    """Observes adapters and subscribers."""

    def __init__(self, plant: "FeedPlant") -> None:
        self.plant = plant

    def published(self, adapter: "AdapterNode", session: str, messages: Sequence[ApplicationMessage]) -> None:
        """An adapter passes messages to its publisher."""

    def role_changed(self, adapter: "AdapterNode", change: RoleChanged) -> None: ...

    def heard(self, adapter: "AdapterNode", message: SyncMessage) -> None:
        """A message of another adapter arrives."""

    def delivered(self, viewer: Viewer, message: ApplicationMessage) -> None:
        """A subscriber delivers a message to its application."""

    def told(self, viewer: Viewer, what: MergeGap | Discontinuity) -> None:
        """A subscriber reports missing messages to its application."""

    def session(self, viewer: Viewer, event: SessionEvent) -> None:
        """A subscriber reports the start or end of a session of a source stream to its application."""


class _Beginning(msgspec.Struct, frozen=True):
    """Beginning of a source stream's lineage, as announced."""

    session: str
    is_whole: bool
    """True if no loss was ever reported, so that all messages equal those of a lossless converter. A new session does
    not restore it, because closing prices, limits and states carry over from the previous day."""
    is_first: bool
    """True if the lineage is also the session's first."""


class NumberChecker(FeedChecker):
    """Remembers the content of every number."""

    def __init__(self, plant: "FeedPlant") -> None:
        super().__init__(plant)
        self._contents: dict[tuple[int, int, int], Made] = {}
        self._beginnings: dict[tuple[int, int], _Beginning] = {}
        self._latest: dict[tuple[str, int], tuple[int, _Beginning | None]] = {}
        """The lineage that each adapter sent last, and how often the adapter had started by then."""

    def content(self, stream_id: int, term: int, number: int) -> Made | None:
        return self._contents.get((lineage(term), stream_id, number))

    def newest(self, stream_id: int) -> Made | None:
        """The message with the highest number of the newest lineage."""
        keys = [key for key in self._contents if key[1] == stream_id]
        return self._contents[max(keys)] if keys else None

    def is_whole(self, stream_id: int, term: int) -> bool:
        return self._beginnings[lineage(term), stream_id].is_whole

    def published(self, adapter: "AdapterNode", session: str, messages: Sequence[ApplicationMessage]) -> None:
        for topic, origin, payload in messages:
            if not origin.flags & OriginFlag.SYNCHRONISED:
                continue
            if origin.flags & OriginFlag.DISCONTINUITY:
                self._announced(adapter, origin, payload)
                continue
            made = Made(session, origin.source_sequence, origin.message_index, topic, payload)
            key = (lineage(origin.term), origin.stream_id, origin.message_sequence)
            known = self._contents.setdefault(key, made)
            self.require(known == made, f"{adapter.name} gives number {key} to {made}, but it stands for {known}")
            if known is made and self.is_whole(origin.stream_id, origin.term):
                self._check_against_source(adapter, key, made)

    def _announced(self, adapter: "AdapterNode", origin: Origin, payload: bytes) -> None:
        """A promoted adapter may lack messages that it does not know of, and a restarted one the closing prices of the
        previous day; otherwise a loss must have been reported."""
        note, sender = DiscontinuityNote.decode(payload), (adapter.name, origin.stream_id)
        if origin.message_index == END_INDEX:
            return  # the end of a takeover starts no lineage
        starts, before = self._latest.get(sender, (1, None))
        is_first = before is None or before.session != note.session
        is_continued = adapter.incarnation == starts and (before is None or before.is_whole)
        is_whole = is_continued and note.reason != "promotion" and not note.lost
        beginning = _Beginning(note.session, is_whole, is_first)
        beginning = self._beginnings.setdefault((lineage(origin.term), origin.stream_id), beginning)
        self._latest[sender] = adapter.incarnation, beginning

    def _check_against_source(self, adapter: "AdapterNode", key: tuple[int, int, int], made: Made) -> None:
        """Compares with the messages of a converter that missed nothing; no message since the last number may be
        omitted."""
        log = self.plant.exchange.logs[key[1]]
        expected = log.made[made.session, made.source_sequence]
        is_right = made.message_index < len(expected) and expected[made.message_index] == made
        self.require(is_right, f"{adapter.name} makes {made}, expected {expected}")
        before = self._contents.get((key[0], key[1], key[2] - 1))
        if before is not None and before.session == made.session:
            after, index = before.source_sequence, before.message_index
        elif before is None and self._beginnings[key[0], key[1]].is_first:
            after, index = 0, -1
        else:
            return
        between = range(after + 1, made.source_sequence)
        skipped = [each for sequence in between for each in log.made[made.session, sequence]]
        skipped += log.made[made.session, after][index + 1 :] if between and after else []
        self.require(not skipped, f"{adapter.name} leaves out {skipped} before {made} without a report")


class TermChecker(FencingChecker, FeedChecker):
    """Records the active adapters over time, and the messages that each adapter has received."""

    def __init__(self, plant: "FeedPlant") -> None:
        FencingChecker.__init__(self)
        FeedChecker.__init__(self, plant)
        self._heard: dict[tuple[str, int], tuple[int, int]] = {}

    def role_changed(self, adapter: "AdapterNode", change: RoleChanged) -> None:
        if change.role == "active":
            self.require_own_term(change.term, (adapter.name, adapter.incarnation))

    def published(self, adapter: "AdapterNode", session: str, messages: Sequence[ApplicationMessage]) -> None:
        for _, origin, _ in messages:
            if origin.flags & OriginFlag.SYNCHRONISED:
                self.require(
                    adapter.persisted >= origin.term,
                    f"{adapter.name} sends in term {Term.of(origin.term)}, its disk has {Term.of(adapter.persisted)}",
                )

    def heard(self, adapter: "AdapterNode", message: SyncMessage) -> None:
        term = getattr(message, "term", 0)
        who = (adapter.name, adapter.incarnation)
        if term > self._heard.get(who, (0, 0))[0]:
            self._heard[who] = (term, self.plant.world.now_ns())

    def step(self, plant: "FeedPlant") -> None:
        now_ns = plant.world.now_ns()
        for adapter in plant.adapters:
            process = adapter.process()
            term, heard_ns = self._heard.get((adapter.name, adapter.incarnation), (0, 0))
            if process is None:
                continue
            synchroniser = process.feed.synchroniser
            since_ns = now_ns - max(heard_ns, adapter.stalled_until_ns)
            is_old = synchroniser.role == "active" and synchroniser.term < term and since_ns > STEP_DOWN_NS_MAX
            self.require(
                not is_old, f"{adapter.name} received the term {Term.of(term)} and is active in {synchroniser.term}"
            )


class PromotionChecker(FeedChecker):
    """Compares the state of an adapter that takes over seamlessly with that of a lossless converter."""

    def __init__(self, plant: "FeedPlant", numbers: NumberChecker) -> None:
        super().__init__(plant)
        self._numbers = numbers

    def role_changed(self, adapter: "AdapterNode", change: RoleChanged) -> None:
        is_seamless = change.role == "active" and Term.of(change.term).takeover > 0
        process = adapter.process()
        if not is_seamless or process is None:
            return
        for stream_id, converter in process.feed.converters.items():
            if not self._numbers.is_whole(stream_id, change.term):
                continue
            position = (adapter.sessions.get(stream_id, ""), converter.next_source_sequence)
            digest = self.plant.exchange.logs[stream_id].digests.get(position)
            is_equal = digest is None or digest == converter.state.digest
            self.require(is_equal, f"{adapter.name} takes over {stream_id} at {position} with another state")


class _Story(msgspec.Struct):
    lineage: int
    number: int
    position: tuple[int, int, int]
    """Session, source sequence and index."""


class StoryChecker(FeedChecker):
    """Records the position of each subscriber."""

    def __init__(self, plant: "FeedPlant", numbers: NumberChecker) -> None:
        super().__init__(plant)
        self._numbers = numbers
        self._stories: dict[tuple[Viewer, int], _Story] = {}
        self.count = 0

    def position(self, viewer: Viewer, stream_id: int) -> tuple[int, int, int] | None:
        story = self._stories.get((viewer, stream_id))
        return story.position if story else None

    def delivered(self, viewer: Viewer, message: ApplicationMessage) -> None:
        topic, origin, payload = message
        made = self._numbers.content(origin.stream_id, origin.term, origin.message_sequence)
        is_known = made is not None and (made.topic, made.payload) == (topic, payload)
        self.require(is_known, f"{viewer} received a message that no adapter sent: {message}, {made}")
        assert made is not None
        sessions = self.plant.exchange.logs[origin.stream_id].sessions
        position = (sessions.index(made.session), made.source_sequence, made.message_index)
        key = (viewer, origin.stream_id)
        story = self._stories.get(key)
        if story is None or not story.lineage:
            after = story.position if story else (-1, 0, 0)
            self.require(position > after, f"{viewer} steps back from {after} to {made}")
        else:
            self.require(position > story.position, f"{viewer} steps back from {story} to {made}")
            is_next = (lineage(origin.term), origin.message_sequence) == (story.lineage, story.number + 1)
            self.require(is_next, f"{viewer} received no report of the gap between {story} and {origin}")
        self._stories[key] = _Story(lineage(origin.term), origin.message_sequence, position)
        self.count += 1

    def told(self, viewer: Viewer, what: MergeGap | Discontinuity) -> None:
        story = self._stories.get((viewer, what.stream_id))
        if story is None:
            return
        if isinstance(what, Discontinuity):
            story.lineage = 0  # the change was announced
        elif story.lineage:
            is_next = (lineage(what.term), what.first) == (story.lineage, story.number + 1)
            self.require(is_next, f"{viewer} received the report of another gap: {what}, {story}")
            story.number = what.last


class SessionChecker(FeedChecker):
    """Messages of a session arrive between its announced start and its announced end."""

    def __init__(self, plant: "FeedPlant") -> None:
        super().__init__(plant)
        self._running: dict[tuple[Viewer, int], SessionEvent] = {}
        self.ends = 0

    def session(self, viewer: Viewer, event: SessionEvent) -> None:
        key = viewer, event.stream_id
        known = self._running.get(key)
        if event.kind == "end":
            is_running = known is None or (known.kind != "end" and known.tag == event.tag)
            self.require(is_running, f"{viewer} received the end of {event} after {known}")
            self.ends += 1
        else:
            self.require(known is None or known.tag != event.tag, f"{viewer} received {event} twice")
        self._running[key] = event

    def delivered(self, viewer: Viewer, message: ApplicationMessage) -> None:
        origin = message[1]
        known = self._running.get((viewer, origin.stream_id))
        is_of_it = known is not None and known.kind != "end" and known.tag == origin.flags >> SESSION_TAG_SHIFT
        self.require(is_of_it, f"{viewer} gets {message} in the session {known}")


class LosslessChecker(FeedChecker):
    """No message may be missing."""

    def __init__(self, plant: "FeedPlant") -> None:
        super().__init__(plant)
        self._got: dict[tuple[Viewer, int], int] = {}
        self._takeovers: dict[int, int] = {}
        """The highest number of a takeover, by generation."""

    def role_changed(self, adapter: "AdapterNode", change: RoleChanged) -> None:
        if change.role == "active":
            term = Term.of(change.term)
            self._takeovers[term.generation] = max(term.takeover, self._takeovers.get(term.generation, 0))

    def delivered(self, viewer: Viewer, message: ApplicationMessage) -> None:
        key = (viewer, message[1].stream_id)
        self._got[key] = self._got.get(key, 0) + 1

    def told(self, viewer: Viewer, what: MergeGap | Discontinuity) -> None:
        is_planned = isinstance(what, Discontinuity) and what.reason in ("start", "session")
        before = self._takeovers.get(Term.of(what.term).generation - 1, 0)
        is_planned |= isinstance(what, Discontinuity) and before + 1 >= TAKEOVERS_MAX
        self.require(is_planned, f"{viewer} reports an avoidable loss: {what}")

    def finish(self, plant: "FeedPlant") -> None:
        for subscriber in plant.subscribers:
            for stream_id, log in plant.exchange.logs.items():
                count = sum(len(made) for made in log.made.values())
                got = self._got.get((subscriber.viewer(), stream_id), 0)
                self.require(got == count, f"{subscriber.name} got {got} of {count} messages of {stream_id}")


class LivenessChecker(FeedChecker):
    """Checks all subscribers at the end."""

    def __init__(self, plant: "FeedPlant", numbers: NumberChecker, stories: StoryChecker) -> None:
        super().__init__(plant)
        self._numbers = numbers
        self._stories = stories

    def finish(self, plant: "FeedPlant") -> None:
        states = []
        for adapter in plant.adapters:
            process = adapter.process()
            assert process is not None
            state = process.feed.synchroniser.state(plant.world.now_ns())
            states.append(state)
            self.require(state.is_synchronised, f"{adapter.name} is not synchronised: {state}")
            for stream_id, converter in process.feed.converters.items():
                end = plant.exchange.logs[stream_id].next_sequence
                at = converter.next_source_sequence
                self.require(at == end, f"{adapter.name} is at {at} of {end} in {stream_id}")
        self.require(sum(state.is_active for state in states) == 1, f"expected one active adapter: {states}")
        for subscriber in plant.subscribers:
            for stream_id, log in plant.exchange.logs.items():
                got = self._stories.position(subscriber.viewer(), stream_id)
                newest = self._numbers.newest(stream_id)
                assert newest is not None
                end_position = (log.sessions.index(newest.session), newest.source_sequence, newest.message_index)
                is_there = got is not None and got >= end_position
                self.require(is_there, f"{subscriber.name} is at {got} of {end_position} in {stream_id}")
