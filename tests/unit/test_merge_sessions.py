"""Session events of a source stream: once and in order with its messages, from any number of adapters."""

from typing import Any

import pytest

from penstock.middleware import Discontinuity, MergeGap, Merger, SessionEvent, Tick
from penstock.middleware.config import MergerConfig
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC
from penstock.middleware.core.source_stream import DiscontinuityNote, session_event_in
from penstock.wire import Extension, Origin, OriginFlag, PacketMessage, encode_origin
from penstock.wire.term import SESSION_TAG_SHIFT, Term, session_tag
from unit.merge_kit import NEXT, A, B, deliver, give, lose, message, numbers_of

DAY_1, DAY_2 = "20240102", "20240103"


def flags(session: str) -> int:
    return int(OriginFlag.SYNCHRONISED) | session_tag(session) << SESSION_TAG_SHIFT


def said(number: int, term: int, reason: str, session: str, date: str = "") -> PacketMessage:
    origin = Origin(7, term, reason == "end", flags(session) | int(OriginFlag.DISCONTINUITY), number + 1, number)
    body = DiscontinuityNote(reason, [], session, date).encode()
    return PacketMessage(DISCONTINUITY_TOPIC, body, extensions={Extension.ORIGIN: encode_origin(origin)})


def day(session: str, *numbers: int, term: int = 1) -> list[PacketMessage]:
    return [message(number, term=term, flags=flags(session)) for number in numbers]


def sessions_of(answers: list[Any]) -> list[tuple[str, str]]:
    return [(each.kind, each.session) for each in answers if isinstance(each, SessionEvent)]


def story(answers: list[Any]) -> list[Any]:
    """Message numbers, with session events in their position."""
    told: list[Any] = []
    for each in answers:
        told += [(each.kind, each.session)] if isinstance(each, SessionEvent) else numbers_of([each])
    return told


@pytest.mark.spec("DAY-3", "SYNC-7")
def test_a_session_event_is_reported_between_the_messages_around_it() -> None:
    merger = Merger()
    answers = merger.handle(deliver(A, [said(0, 1, "start", DAY_1, "2024-01-02"), *day(DAY_1, 1, 2)]), 0)
    assert story(answers) == [("begin", DAY_1), 1, 2]
    assert [each.trading_date for each in answers if isinstance(each, SessionEvent | Discontinuity)] == [
        "2024-01-02"
    ] * 2
    ended = [said(2, 1, "end", DAY_1), said(2, NEXT, "session", DAY_2), *day(DAY_2, 3, term=NEXT)]
    assert story(merger.handle(deliver(A, ended), 0)) == [("end", DAY_1), ("begin", DAY_2), 3]


@pytest.mark.spec("DAY-3", "SYNC-7")
def test_session_events_of_several_adapters_are_reported_once() -> None:
    merger = Merger()
    whole = [said(0, 1, "start", DAY_1), *day(DAY_1, 1, 2), said(2, 1, "end", DAY_1)]
    after = [said(2, NEXT, "session", DAY_2), *day(DAY_2, 3, term=NEXT)]
    answers = merger.handle(deliver(A, whole), 0) + merger.handle(deliver(B, whole), 0)
    answers += merger.handle(deliver(B, after), 0) + merger.handle(deliver(A, after), 0)
    assert story(answers) == [("begin", DAY_1), 1, 2, ("end", DAY_1), ("begin", DAY_2), 3]


@pytest.mark.spec("DAY-3", "SYNC-7")
def test_the_end_of_a_session_waits_for_messages_that_another_adapter_may_have() -> None:
    merger = Merger()
    merger.handle(deliver(A, [said(0, 1, "start", DAY_1), *day(DAY_1, 1)]), 0)
    merger.handle(deliver(B, day(DAY_1, 1)), 0)
    lose(merger, B)
    assert story(merger.handle(deliver(B, [said(3, 1, "end", DAY_1)]), 0)) == []
    after = merger.handle(deliver(B, [said(3, NEXT, "session", DAY_2), *day(DAY_2, 4, term=NEXT)]), 0)
    assert story(after) == []
    assert story(merger.handle(deliver(A, day(DAY_1, 2, 3)), 0)) == [2, 3, ("end", DAY_1), ("begin", DAY_2), 4]


@pytest.mark.spec("DAY-3", "MW-6")
def test_the_end_of_a_session_is_reported_after_the_gap_that_nothing_fills() -> None:
    merger = Merger(MergerConfig(wait_ms=10))
    merger.handle(deliver(A, [said(0, 1, "start", DAY_1), *day(DAY_1, 1)]), 0)
    merger.handle(deliver(B, day(DAY_1, 1)), 0)
    lose(merger, B)
    assert story(merger.handle(deliver(B, [said(3, 1, "end", DAY_1)]), 0)) == []
    (gap, ended) = merger.handle(Tick(), 20_000_000)
    assert isinstance(gap, MergeGap)
    assert (gap.first, gap.last) == (2, 3)
    assert sessions_of([ended]) == [("end", DAY_1)]


@pytest.mark.spec("DAY-3", "SYNC-7")
def test_a_session_with_a_lost_announcement_is_known_by_the_tag_of_its_messages() -> None:
    merger = Merger()
    merger.handle(deliver(A, [said(0, 1, "start", DAY_1), *day(DAY_1, 1)]), 0)
    answers = merger.handle(deliver(A, day(DAY_2, 5, term=NEXT)), 0)
    assert story(answers) == [("begin", ""), 5]
    assert [each.tag for each in answers if isinstance(each, SessionEvent)] == [session_tag(DAY_2)]


@pytest.mark.spec("DAY-3")
def test_a_stream_joined_in_the_middle_of_a_session_reports_the_running_one() -> None:
    merger = Merger()
    assert story(merger.handle(deliver(A, day(DAY_1, 7, 8)), 0)) == [("running", ""), 7, 8]
    other = int(Term(2, 0, 0, 0))
    again = [said(8, other, "promotion", DAY_1), *day(DAY_1, 9, term=other)]
    assert story(merger.handle(deliver(A, again), 0)) == [9]  # the same session continues


@pytest.mark.spec("DAY-3")
def test_a_receiver_that_only_gets_the_end_of_a_session_reports_it() -> None:
    merger = Merger()
    assert story(merger.handle(deliver(A, [said(8, 1, "end", DAY_1)]), 0)) == [("end", DAY_1)]
    assert numbers_of(give(merger, A, 9)) == [9]


@pytest.mark.spec("DAY-3")
def test_a_session_whose_end_was_reported_does_not_begin_again() -> None:
    """An adapter that has not seen the end yet may announce a lineage of the ended session."""
    merger = Merger()
    assert story(merger.handle(deliver(A, [said(8, 1, "end", DAY_1)]), 0)) == [("end", DAY_1)]
    late = [said(10, NEXT, "session", DAY_1), *day(DAY_1, 11, term=NEXT)]
    assert story(merger.handle(deliver(A, late), 0)) == [11]
    after = int(Term(3, 0, 0, 0))
    following = [said(11, after, "session", DAY_2), *day(DAY_2, 12, term=after)]
    assert story(merger.handle(deliver(A, following), 0)) == [("begin", DAY_2), 12]


def test_a_receiver_without_merge_reads_sessions_from_messages() -> None:
    begun, ended = said(0, 1, "session", DAY_1, "2024-01-02"), said(5, 1, "end", DAY_1)
    assert session_event_in(begun) == SessionEvent("begin", 7, DAY_1, "2024-01-02", session_tag(DAY_1))
    assert session_event_in(ended) == SessionEvent("end", 7, DAY_1, "", session_tag(DAY_1))
    assert session_event_in(message(1)) is None
    assert session_event_in(PacketMessage(DISCONTINUITY_TOPIC, b"", extensions={Extension.ORIGIN: b"short"})) is None


def dated(tag: int, date: str, number: int, *sources: int, term: int) -> list[PacketMessage]:
    """The announcement of the session "day" after a number, and its messages, with their source numbers."""
    synchronised = int(OriginFlag.SYNCHRONISED) | tag << SESSION_TAG_SHIFT
    start = Origin(7, term, 0, synchronised | int(OriginFlag.DISCONTINUITY), 1, number)
    body = DiscontinuityNote("start", [], "day", date).encode()
    begun = PacketMessage(DISCONTINUITY_TOPIC, body, extensions={Extension.ORIGIN: encode_origin(start)})
    origins = [Origin(7, term, 0, synchronised, source, number + at) for at, source in enumerate(sources, 1)]
    return [begun, *(PacketMessage("t", b"", extensions={Extension.ORIGIN: encode_origin(each)}) for each in origins)]


@pytest.mark.spec("DAY-1", "DAY-3")
@pytest.mark.parametrize("tags", [(1, 2), (1, 1)])
def test_a_session_name_that_the_venue_reuses_daily_is_a_new_session_on_a_new_date(tags: tuple[int, int]) -> None:
    """Adapters restarted overnight call both sessions "day": positions in the source start again, even if both
    sessions have the same tag."""
    merger = Merger()
    first = dated(tags[0], "2024-01-02", 0, 1, 2, 3, term=1)
    second = dated(tags[1], "2024-01-03", 3, 1, 2, 3, term=NEXT)
    assert story(merger.handle(deliver(A, first), 0)) == [("begin", "day"), 1, 2, 3]
    assert story(merger.handle(deliver(A, second), 0)) == [("begin", "day"), 4, 5, 6]
    later = dated(tags[1], "2024-01-03", 6, 4, 5, term=int(Term(3, 0, 0, 0)))
    assert story(merger.handle(deliver(A, later), 0)) == [7, 8], "the same session"


def three_lineages() -> list[list[PacketMessage]]:
    """The current lineage on the second day, a newer one on the first day, and a newer one on the second day."""
    terms = [int(Term(generation, 0, 0, 0)) for generation in (1, 2, 3)]
    current = dated(2, "2024-01-03", 0, 1, 2, 3, term=terms[0])
    earlier = dated(1, "2024-01-02", 60, 61, 62, term=terms[1])
    return [current, earlier, dated(2, "2024-01-03", 70, 1, 2, 3, 4, term=terms[2])]


@pytest.mark.spec("DAY-3", "SYNC-7")
def test_a_newer_lineage_of_an_earlier_day_yields_to_the_lineage_of_the_current_session() -> None:
    """Disconnected adapters start a session in separate lineages. A receiver that is late on the lineage with the
    higher terms gets the last lineage of the previous day, although the new session has begun."""
    current, earlier, later = three_lineages()
    taken_over = dated(1, "2024-01-02", 62, 63, term=int(Term(2, 0, 1, 1)))[1:]
    merger = Merger()
    assert story(merger.handle(deliver(A, current[:3]), 0)) == [("begin", "day"), 1, 2]
    assert not merger.handle(deliver(B, [*earlier, *taken_over]), 0)
    assert story(merger.handle(deliver(A, current[3:]), 0)) == [3]
    answers = merger.handle(deliver(B, later), 0)
    assert story(answers) == [74], "source numbers 1 to 3 of the session were delivered before"
    assert merger.next_deadline_ns() is None


@pytest.mark.spec("DAY-3", "SYNC-7")
def test_a_newer_lineage_of_an_earlier_day_is_used_if_no_other_one_follows() -> None:
    current, earlier, later = three_lineages()
    merger = Merger(MergerConfig(wait_ms=10))
    merger.handle(deliver(A, current), 0)
    assert not merger.handle(deliver(B, earlier), 0)
    assert merger.next_deadline_ns() == 10_000_000
    announced, *rest = merger.handle(Tick(), 10_000_000)
    assert isinstance(announced, Discontinuity)
    assert (announced.reason, announced.trading_date) == ("start", "2024-01-02")
    assert story(rest) == [("begin", "day"), 61, 62]
    assert story(merger.handle(deliver(B, later), 0)) == [("begin", "day"), 71, 72, 73, 74]
