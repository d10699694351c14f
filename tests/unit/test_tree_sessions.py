"""Session events reported by a subscriber of a tree whose streams all have copies of the events."""

from typing import Any

import pytest

from penstock.middleware import SessionEvent
from penstock.tree.client.core.session_events import EVENTS_MAX, SOURCES_MAX, SessionEvents
from penstock.wire import Origin
from penstock.wire.term import SESSION_TAG_SHIFT


def session(kind: Any, day: int, stream_id: int = 1) -> SessionEvent:
    return SessionEvent(kind, stream_id, f"day{day}", f"2026-01-{day:02}", tag=day)


def told(events: SessionEvents, *brought: tuple[str, SessionEvent]) -> list[SessionEvent]:
    return [news for stream, event in brought if (news := events.news(stream, event)) is not None]


@pytest.mark.spec("DAY-3", "TREE-1")
def test_a_copy_in_a_stream_that_is_days_behind_is_ignored() -> None:
    story = [session(kind, day) for day in range(1, 6) for kind in ("begin", "end")]
    events = SessionEvents()
    assert told(events, *(("us", event) for event in story)) == story
    assert told(events, *(("eu", event) for event in story)) == []
    assert told(events, ("eu", session("begin", 6)), ("us", session("begin", 6))) == [session("begin", 6)]


@pytest.mark.spec("DAY-3", "TREE-1")
def test_a_session_that_begins_again_in_the_same_stream_is_reported() -> None:
    """Sessions of a sealed feed have no names, and tags may repeat."""
    story = [SessionEvent("begin", 1, tag=tag) for tag in (1, 2, 1)]
    events = SessionEvents()
    assert told(events, *(("us", event) for event in story)) == story
    assert told(events, *(("eu", event) for event in story)) == []


@pytest.mark.spec("DAY-3", "TREE-1")
def test_a_running_session_that_is_not_the_known_one_has_begun() -> None:
    events = SessionEvents()
    assert told(events, ("us", session("running", 1))) == [session("running", 1)]
    assert told(events, ("us", session("running", 1)), ("eu", session("running", 1))) == []
    assert told(events, ("us", session("running", 2)), ("eu", session("running", 2))) == [session("begin", 2)]
    assert told(events, ("us", session("end", 2)), ("us", session("running", 2))) == [session("end", 2)]


@pytest.mark.spec("DAY-3", "TREE-1")
@pytest.mark.parametrize(("tag", "kind"), [(1, "begin"), (2, "running"), (0, "running")])
def test_messages_identify_the_known_session(tag: int, kind: str) -> None:
    events = SessionEvents()
    events.note_origin(Origin(1, 1, 0, tag << SESSION_TAG_SHIFT, 1, 1))
    assert told(events, ("us", session("running", 2))) == [session(kind, 2)]


def test_remembered_sessions_are_bounded() -> None:
    events = SessionEvents()
    for day in range(2 * EVENTS_MAX):
        events.news("us", SessionEvent("begin", 1, f"day{day}", tag=day))
    assert len(events._sources["", 1].events) == EVENTS_MAX
    for stream_id in range(2 * SOURCES_MAX):
        assert events.news("us", session("begin", 1, stream_id + 2)) is not None
        events.note_origin(Origin(stream_id, 1, 0, 0, 1, 1))
    assert len(events._sources) == len(events._tags) == SOURCES_MAX
