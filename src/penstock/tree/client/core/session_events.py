"""Session events of source streams, of which every stream of a tree has its own copy: a subscriber reports each once.

The streams of a tree have no common order: the copy in one stream may arrive long after the copy in another one.
Therefore this module records for each stream which of the reported events the stream has brought.
"""

from collections import deque

import msgspec

from penstock.middleware.core.events import SessionEvent
from penstock.wire import Origin
from penstock.wire.term import SESSION_TAG_SHIFT

EVENTS_MAX = 64
"""Events of a source stream that are compared with those of a tree's stream that is behind."""

SOURCES_MAX = 4_096


class _Source:
    """The events of one source stream."""

    def __init__(self) -> None:
        self.events: deque[SessionEvent] = deque()
        self.first = 0
        """The number of the first event in `events`; they are counted from 0."""
        self.next: dict[str, int] = {}
        """For each stream of the tree: the number after that of its last event."""
        self.known: SessionEvent | None = None

    def is_copy(self, stream: str, event: SessionEvent) -> bool:
        """True if another stream of the tree has brought the event before."""
        begin = self.next.get(stream, 0)
        for number, each in enumerate(self.events, self.first):
            if number >= begin and each == event:
                self.next[stream] = number + 1
                return True
        self.events.append(event)
        if len(self.events) > EVENTS_MAX:
            self.events.popleft()
            self.first += 1
        self.next[stream] = self.first + len(self.events)
        return False


class SessionEvents:
    """Decides which session events are news for the application."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, int], _Source] = {}
        self._tags: dict[int, int] = {}

    def note_origin(self, origin: Origin) -> None:
        """A message with this origin was delivered."""
        if origin.stream_id in self._tags or len(self._tags) < SOURCES_MAX:
            self._tags[origin.stream_id] = origin.flags >> SESSION_TAG_SHIFT

    def news(self, stream: str, event: SessionEvent) -> SessionEvent | None:
        """The event to report to the application when this stream of the tree brings it; None for a repetition."""
        key = event.feed, event.stream_id
        if key not in self._sources:
            if len(self._sources) >= SOURCES_MAX:
                return event
            self._sources[key] = _Source()
        source = self._sources[key]
        if source.is_copy(stream, event):
            return None
        known = source.known
        if event.repeats(known):
            return None
        if event.kind == "running" and self._is_other(known, event):  # the root missed the session's begin
            event = msgspec.structs.replace(event, kind="begin")
        source.known = event
        return event

    def _is_other(self, known: SessionEvent | None, event: SessionEvent) -> bool:
        """True if the subscriber has had an event or messages of another session of the source stream."""
        return known is not None or self._tags.get(event.stream_id, 0) not in (0, event.tag)
