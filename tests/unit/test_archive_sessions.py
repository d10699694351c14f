"""Sessions of an archive's streams: where they begin and end, and which days are derived again."""

import numpy as np
import pytest

from penstock.capture.core.rows import ORIGIN_DTYPE
from penstock.spark.pipeline.archive.commits import Catalogue, Commit, FileEntry
from penstock.spark.pipeline.archive.sessiontags import SEQ_BITS, SeenRun, SessionsSeen
from penstock.spark.pipeline.sessions import (
    all_sessions,
    days_since,
    ending_sessions,
    session_changes,
    sessions_going_on,
    sessions_since,
)
from penstock.wire.term import LINEAGE_SHIFT

HOUR_NS = 3_600 * 10**9


def appended(catalogue: Catalogue, *slices: dict[str, list[SeenRun]]) -> None:
    number = catalogue.number + 1
    changes = session_changes(catalogue, slices, number)
    catalogue.take(Commit(number=number, kind="append", run="", made_ns=0, sessions=changes))


def derived(catalogue: Catalogue, *, is_closing: bool = False) -> dict[str, list[int]]:
    ended = ending_sessions(catalogue, is_closing=is_closing)
    catalogue.take(Commit(number=catalogue.number + 1, kind="derive", run="", made_ns=0, ended=ended))
    return ended


def quotes(*streams: int, hour: float = 0) -> list[FileEntry]:
    """Files of the table `quote`, from an hour on."""
    return [
        FileEntry(
            table="quote", path=f"quote/{stream}", rows=1, size=1, commit_first=1, commit_last=1, stream=stream,
            time_min=int(hour * HOUR_NS), time_max=10**6 * HOUR_NS,
        )
        for stream in streams
    ]  # fmt: skip


def run(place: int, tag: int, hour: float) -> SeenRun:
    return SeenRun(place, tag, int(hour * HOUR_NS), int((hour + 1) * HOUR_NS))


@pytest.mark.spec("DAY-4")
def test_a_session_ends_when_the_next_begins_or_when_it_is_closed() -> None:
    catalogue = Catalogue()
    appended(catalogue, {"1": [run(10, 7, 2)]}, {"1": [run(1, 7, 1)]})
    assert derived(catalogue) == {}
    appended(catalogue, {"1": [run(20, 7, 3)], "2": [run(5, 1, 3)]})
    assert [(entry.place, entry.tag, entry.begun) for entry in catalogue.sessions["1"]] == [(1, 7, 1)]
    assert catalogue.sessions["1"][0].last_ns == 4 * HOUR_NS
    appended(catalogue, {"1": [run(30, 8, 26)]})
    assert derived(catalogue) == {"1": [1]}
    assert derived(catalogue) == {}
    appended(catalogue, {"1": [run(40, 8, 27), run(50, 7, 40)]})
    assert derived(catalogue, is_closing=True) == {"1": [30, 50], "2": [5]}
    appended(catalogue, {"1": [run(60, 7, 41)]})
    assert [entry.place for entry in catalogue.sessions["1"]] == [1, 30, 50, 60], (
        "later messages belong to another session"
    )
    sessions = all_sessions(catalogue, {})
    assert [(each.session.first, each.session.is_ended) for each in sessions_since(sessions, 8)] == [(60, False)]
    assert len(sessions_since(sessions, 0)) == 5, "a new derivation gets all sessions"


@pytest.mark.spec("DAY-4")
def test_sessions_with_the_same_tag_are_distinguished_by_their_first_message() -> None:
    catalogue = Catalogue()
    for lineages, beginnings in (([1, 2], [1]), ([2, 3], [1]), ([4, 5], [1, 4]), ([6], [4])):
        seen = SessionsSeen()
        for lineage in lineages:
            origins = np.zeros(3, ORIGIN_DTYPE)
            origins["stream_id"], origins["term"], origins["flags"] = 1, lineage << LINEAGE_SHIFT, 7 << 3
            origins["seq"] = range(10 * lineage, 10 * lineage + 3)
            seen.note(origins, np.full(3, lineage * HOUR_NS, np.int64))
        appended(catalogue, seen.export({1: beginnings}))
    found = [(entry.place >> SEQ_BITS, entry.tag, entry.last_ns // HOUR_NS) for entry in catalogue.sessions["1"]]
    assert found == [(1, 7, 3), (4, 7, 6)]
    assert derived(catalogue) == {"1": [(1 << SEQ_BITS) + 10]}


@pytest.mark.spec("DAY-4", "DAY-6")
def test_a_file_that_is_read_to_its_end_has_ended() -> None:
    catalogue = Catalogue()
    catalogue.sources["feed:a"] = {"stream": 1, "slices": 1, "of": 2}
    appended(catalogue, {"1": [run(1, 7, 1)]})
    assert derived(catalogue) == {}
    catalogue.sources["feed:a"]["slices"] = 2
    assert derived(catalogue) == {"1": [1]}


@pytest.mark.spec("DAY-4", "DAY-6")
def test_only_open_sessions_with_later_messages_are_running() -> None:
    catalogue = Catalogue()
    catalogue.sources["feed:a"] = {"stream": 2, "slices": 1, "of": 1}
    appended(catalogue, {"1": [run(1, 7, 1), run(20, 8, 25)], "2": [run(1, 7, 25)], "3": [run(1, 7, 25)]})
    found = sessions_going_on(catalogue, {1, 2, 4}, 24 * HOUR_NS)
    assert [(stream, entry.place) for stream, entry in found] == [("1", 20)], "a file that is read has ended"
    assert sessions_going_on(catalogue, {1}, 27 * HOUR_NS) == []
    derived(catalogue, is_closing=True)
    assert sessions_going_on(catalogue, {1}, 0) == []


@pytest.mark.spec("DAY-4", "DAY-6")
def test_a_day_is_derived_when_all_its_sessions_have_ended_and_again_when_one_is_added() -> None:
    catalogue = Catalogue()
    appended(catalogue, {"1": [run(1, 7, 1), run(100, 8, 25)], "2": [run(1, 7, 1.5)]})

    def made(since: int, *files: FileEntry) -> tuple[list[tuple[int, int]], list[str]]:
        sessions = all_sessions(catalogue, ending_sessions(catalogue, is_closing=False))
        days, replaced = days_since(sessions, since, quotes(1, 2, 3), files)
        return [(each.session.stream, each.session.first) for each in days], [file.path for file in replaced]

    assert made(0) == ([], []), "stream 2 is still in the first day"
    appended(catalogue, {"2": [run(200, 8, 25.5)]})
    assert made(0) == ([(1, 1), (2, 1)], [])
    derived(catalogue)
    assert made(catalogue.number) == ([], [])
    files = [
        FileEntry(
            table="bbo", path=path, rows=1, size=1, commit_first=3, commit_last=3, time_min=hour * HOUR_NS,
            time_max=(hour + 1) * HOUR_NS,
        )
        for path, hour in (("first", 1), ("second", 25))
    ]  # fmt: skip
    catalogue.sources["feed:late"] = {"stream": 3, "slices": 1, "of": 1}
    appended(catalogue, {"3": [run(1, 9, 2)]})
    assert made(catalogue.number - 1, *files) == ([(1, 1), (2, 1), (3, 1)], ["first"])


def announced_end(place: int, tag: int) -> SeenRun:
    return SeenRun(place, tag, 0, 0, is_end=True)


@pytest.mark.spec("DAY-3", "DAY-4")
def test_an_announced_end_closes_a_session_and_later_messages_belong_to_another() -> None:
    catalogue = Catalogue()
    appended(catalogue, {"1": [run(10, 7, 2)]})
    appended(catalogue, {"1": [run(20, 7, 3), announced_end(25, 7)]}, {"1": [announced_end(25, 7)]})
    assert derived(catalogue) == {"1": [10]}, "no wait for the next trading day"
    appended(catalogue, {"1": [announced_end(25, 7), run(26, 7, 4), announced_end(30, 6)]})
    assert [entry.place for entry in catalogue.sessions["1"]] == [10, 26]
    assert derived(catalogue) == {}, "the end of a session with another tag does not end this session"


@pytest.mark.spec("DAY-4")
@pytest.mark.parametrize("cuts", [(), (4,), (6,), (7,), (8,), (5, 7)])
def test_announced_ends_divide_messages_the_same_way_wherever_the_file_is_cut(cuts: tuple[int, ...]) -> None:
    origins = np.zeros(10, ORIGIN_DTYPE)
    origins["stream_id"], origins["term"], origins["flags"], origins["seq"] = 1, 1 << LINEAGE_SHIFT, 7 << 3, range(10)
    end = origins[6:7].copy()
    catalogue = Catalogue()
    for first, last in zip((0, *cuts), (*cuts, 10), strict=True):
        seen = SessionsSeen()
        if first <= 7 and last >= 7:  # the announcement comes after message 6
            seen.note(origins[first:7], np.full(7 - first, HOUR_NS)) if first < 7 else None
            seen.note_ends(np.concatenate([end, end]))
            seen.note(origins[7:last], np.full(last - 7, HOUR_NS)) if last > 7 else None
        else:
            seen.note(origins[first:last], np.full(last - first, HOUR_NS))
        appended(catalogue, seen.export({}))
    base = 1 << SEQ_BITS
    found = [(entry.place - base, entry.last_place) for entry in catalogue.sessions["1"]]
    assert found == [(0, base + 6), (7, None)]


@pytest.mark.spec("DAY-4", "DAY-5")
def test_a_stream_without_rows_of_the_needed_tables_delays_no_day() -> None:
    catalogue = Catalogue()
    appended(catalogue, {"1": [run(1, 7, 1)], "0": [run(1, 0, 1)]})
    appended(catalogue, {"1": [run(100, 8, 25)], "0": [run(2, 0, 25)]})
    sessions = all_sessions(catalogue, ending_sessions(catalogue, is_closing=False))
    assert days_since(sessions, 0, quotes(0, 1), []) == ([], [])
    days, _ = days_since(sessions, 0, quotes(1), [])
    assert [(each.session.stream, each.session.first) for each in days] == [(1, 1)]


@pytest.mark.spec("DAY-4", "DAY-5")
def test_a_day_does_not_wait_for_a_stream_that_has_stopped_or_that_never_ends() -> None:
    catalogue = Catalogue()
    appended(catalogue, {"1": [run(1, 7, 1)], "2": [run(1, 7, 1.5)], "3": [run(1, 1, 0)]})

    needed = quotes(1, 2, 3)

    def made(since: int, *files: FileEntry) -> list[tuple[int, int, bool]]:
        sessions = all_sessions(catalogue, ending_sessions(catalogue, is_closing=False))
        days, _ = days_since(sessions, since, needed, files)
        return [(each.session.stream, each.session.first, each.session.is_ended) for each in days]

    for day in (1, 2):
        appended(catalogue, {"1": [run(100 * day, 7 + day, 1 + 24 * day)], "3": [run(100 * day, 1, 24 * day)]})
        if day == 1:
            assert made(0) == [], "stream 2 may continue"
    assert made(0) == [(1, 1, True), (2, 1, True), (1, 100, True)]
    derived(catalogue)
    written = FileEntry(
        table="bbo", path="first", rows=1, size=1, commit_first=3, commit_last=3, time_min=HOUR_NS, time_max=2 * HOUR_NS
    )
    assert made(catalogue.number, written) == [], "the day of the stopped stream is derived once"
    assert made(catalogue.number) == [(1, 1, True), (2, 1, True)]
    needed = quotes(1, 2, 3, hour=26)
    assert made(catalogue.number) == [], "retention has removed the rows of the day"
    needed = quotes(1, 2, 3)
    appended(catalogue, {"2": [run(200, 8, 49)]})
    assert made(catalogue.number - 1, written) == [(1, 1, True), (2, 1, True)], (
        "derived again when the stream continues"
    )
