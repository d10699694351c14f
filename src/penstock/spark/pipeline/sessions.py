"""Sessions of the streams in an archive: begin, extent so far, and end.

    seen = SessionsSeen()
    seen.note(origins, times)                          # in a worker, for the rows of a slice
    changes = session_changes(catalogue, [seen...], commit)

A session of a stream is a run of messages with the same session tag in their ORIGIN flags, in the order of their
positions (lineage, then number). If two adjacent sessions have the same tag, the announcement between them, which has
the full name and trading date, separates them (capture.core.cursors). A session ends

* when a later session of its stream begins,
* when an adapter announces its end, after the last message of the announcement,
* when its stream belongs to a recorded file that has been read to its end, or
* when the run is asked to close everything, or a file replaces rows of its stream.

Derivations close a session's bars, books and day when the session has ended, and carry them from step to step until
then. Derived rows therefore do not depend on how a source is cut into runs and steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.spark.pipeline.archive.commits import Catalogue, FileEntry, SessionEntry
from penstock.spark.pipeline.archive.days import FEED
from penstock.spark.pipeline.archive.sessiontags import SEQ_BITS, SeenRun
from penstock.spark.pipeline.derive.lifetimes import Span, lifetimes
from penstock.spark.pipeline.derive.protocol import Session
from penstock.spark.pipeline.derive.trades import NEVER

STALE_NS = 36 * 3_600 * NS_PER_SECOND
"""Longer than a trading day. An open session that lasts longer, or that is older than this, delays no day."""


def session_changes(
    catalogue: Catalogue, seen: Iterable[Mapping[str, list[SeenRun]]], commit: int, *, forgotten: Collection[str] = ()
) -> dict[str, list[SessionEntry]]:
    """Return the sessions that begin or continue with these runs of messages, by stream, in order.

    Archived sessions of the streams in `forgotten` are ignored.
    """
    runs: dict[str, list[SeenRun]] = {}
    for found in seen:
        for stream, more in found.items():
            runs.setdefault(stream, []).extend(more)
    known = {stream: entries for stream, entries in catalogue.sessions.items() if stream not in forgotten}
    return {stream: _changed(known.get(stream, []), found, commit) for stream, found in runs.items()}


def _changed(known: list[SessionEntry], runs: list[SeenRun], commit: int) -> list[SessionEntry]:
    last = known[-1] if known and not known[-1].ended else None
    made: list[SessionEntry] = []
    for run in sorted(runs, key=lambda run: (run.place, run.is_end)):
        if run.is_end:
            if last is not None and last.tag == run.tag and last.place <= run.place and last.last_place is None:
                last = msgspec.structs.replace(last, last_place=run.place)
                made[-1:] = [last]
        elif last is not None and _goes_on(last, run):
            last = msgspec.structs.replace(
                last, first_ns=min(last.first_ns, run.first_ns), last_ns=max(last.last_ns, run.last_ns)
            )
            made[-1:] = [last]
        else:
            last = SessionEntry(place=run.place, tag=run.tag, begun=commit, first_ns=run.first_ns, last_ns=run.last_ns)
            made.append(last)
    return made


def _goes_on(session: SessionEntry, run: SeenRun) -> bool:
    """True if messages that follow a session belong to it."""
    is_same = session.tag == run.tag and run.begun <= session.place >> SEQ_BITS
    return is_same and (session.last_place is None or run.place <= session.last_place)


def ending_sessions(catalogue: Catalogue, *, is_closing: bool, closing: Collection[str] = ()) -> dict[str, list[int]]:
    """Return the positions of ended sessions that the derivations have not closed yet, by stream.

    `is_closing` ends the sessions of all streams, `closing` those of some streams.
    """
    read = {
        str(position["stream"])
        for key, position in catalogue.sources.items()
        if key.startswith(FEED) and position["slices"] == position["of"]
    }
    found: dict[str, list[int]] = {}
    for stream, entries in catalogue.sessions.items():
        is_over = is_closing or stream in closing or stream in read
        is_over |= bool(entries) and entries[-1].last_place is not None
        ended = [entry.place for entry in (entries if is_over else entries[:-1]) if not entry.ended]
        if ended:
            found[stream] = ended
    return found


def sessions_going_on(catalogue: Catalogue, streams: Collection[int], since_ns: int) -> list[tuple[str, SessionEntry]]:
    """Return open sessions of these streams that have messages of `since_ns` or later, each with its stream."""
    ending = ending_sessions(catalogue, is_closing=False)
    return [
        (stream, entry)
        for stream in map(str, sorted(streams))
        for entry in catalogue.sessions.get(stream, ())
        if not entry.ended and entry.place not in ending.get(stream, ()) and entry.last_ns >= since_ns
    ]


class StreamSession(msgspec.Struct, frozen=True):
    """A session and its stream."""

    session: Session
    entry: SessionEntry
    is_stale: bool = False
    """The session is open, and its stream has stopped."""


def all_sessions(catalogue: Catalogue, ending: Mapping[str, list[int]]) -> list[StreamSession]:
    """Return every session of every stream, with those in `ending` marked as ended."""
    found = []
    for stream, entries in catalogue.sessions.items():
        bounds = [*(entry.place for entry in entries[1:]), NEVER]
        for entry, last in zip(entries, bounds, strict=True):
            is_ended = bool(entry.ended) or entry.place in ending.get(stream, ())
            found.append(StreamSession(Session(int(stream), entry.place, last, is_ended), entry))
    return found


def sessions_since(sessions: list[StreamSession], since: int) -> list[StreamSession]:
    """Return the sessions that were open after a derivation's last step, which was commit `since`."""
    return [each for each in sessions if not each.entry.ended or each.entry.ended > since]


def days_since(
    sessions: list[StreamSession], since: int, needed: Iterable[FileEntry], written: Iterable[FileEntry]
) -> tuple[list[StreamSession], list[FileEntry]]:
    """Return, for a derivation over all streams, the sessions of the days to compute, and the files that they replace.
    `needed` are the files of the tables that the derivation reads; streams without such files delay no day.

    A day is computed when all of its sessions have ended, and again when a session is added to the day, such as the
    file of another venue. The new rows then replace the earlier ones in `written`.

    Two kinds of open sessions delay no day. The rows of a session that is longer than a day, such as that of a stream
    of contributions, are used when it has ended. The session of a stream that has stopped counts as ended.
    """
    sources = list(needed)
    streams = {file.stream for file in sources}
    sessions = [each for each in sessions if each.session.stream in streams]
    now_ns = max((each.entry.last_ns for each in sessions), default=0)
    sessions = [_as_seen(each, now_ns) for each in sessions if each.session.is_ended or not _is_long(each)]
    spans = {
        Span(each.session.stream, str(each.session.stream), each.session.first, each.entry.first_ns, each.entry.last_ns,
             each.session.first, each.session.last - 1): each
        for each in sessions
    }  # fmt: skip
    days: dict[int, list[StreamSession]] = {}
    by_key = {(span.stream, span.session): each for span, each in spans.items()}
    for life in lifetimes(list(spans)):
        days.setdefault(life.day, []).append(by_key[life.stream, life.session])
    files = list(written)
    over = [day for day in days.values() if all(each.session.is_ended for each in day)]
    made = [day for day in over if _has_ended_since(day, since) or _waits_for_rows(day, sources, files)]
    while True:
        replaced = [file for file in files if any(_is_within(day, file) for day in made)]
        more = [day for day in over if day not in made and any(_is_within(day, file) for file in replaced)]
        if not more:
            return [each for day in made for each in day], replaced
        made += more


def _is_long(session: StreamSession) -> bool:
    return session.entry.last_ns - session.entry.first_ns >= STALE_NS


def _as_seen(session: StreamSession, now_ns: int) -> StreamSession:
    """The session, ended if its stream has stopped."""
    if session.session.is_ended or now_ns - session.entry.last_ns < STALE_NS:
        return session
    ended = msgspec.structs.replace(session.session, is_ended=True)
    return msgspec.structs.replace(session, session=ended, is_stale=True)


def _has_ended_since(day: list[StreamSession], since: int) -> bool:
    """True if a session of the day ended in a commit after `since`, or ends in this one."""
    return any(not each.is_stale and (not each.entry.ended or each.entry.ended > since) for each in day)


def _waits_for_rows(day: list[StreamSession], needed: list[FileEntry], written: list[FileEntry]) -> bool:
    """True for a day that waited for a stream that has stopped: there are rows to read, and none is written. There are
    none to read if retention has removed the day."""
    if not any(each.is_stale for each in day):
        return False
    return any(_is_within(day, file) for file in needed) and not any(_is_within(day, file) for file in written)


def _is_within(day: list[StreamSession], file: FileEntry) -> bool:
    """True if a file may have rows of a day."""
    if file.time_min is None or file.time_max is None:
        return False
    first_ns, last_ns = min(each.entry.first_ns for each in day), max(each.entry.last_ns for each in day)
    return file.time_min <= last_ns and file.time_max >= first_ns
