"""Counts the messages of a source stream, to check lines, requests and logins."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from penstock.base.counters import Counters
from penstock.base.readable import printable
from penstock.feed.core.lines.events import (
    LineHeard,
    LineInstruction,
    LineSilent,
    SessionEnded,
    SessionStarted,
    SourceLost,
    SourceReady,
)
from penstock.feed.live.soup_client import SoupClient, SoupEvent

LOOK_SECONDS = 0.2
"""Interval of checks for the end of listening."""


class ListenReport:
    """Counts so far; `say` gets all events except messages."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.messages = 0
        self.lost = 0
        self.has_ended = False
        self._say = say

    def take(self, event: LineInstruction) -> None:
        match event:
            case SourceReady():
                self.messages += len(event.batch)
            case SourceLost():
                self.lost += event.last - event.first + 1
                self._say(f"messages {event.first} to {event.last} are lost: {event.cause}")
            case SessionStarted():
                self._say(f"session {printable(event.name)} begins at message {event.first}")
            case SessionEnded():
                self.has_ended = True
                self._say(f"session {printable(event.name)} ended before message {event.next_sequence}")
            case LineSilent():
                self._say(f"line {'AB'[event.line]} is silent")
            case LineHeard():
                self._say(f"line {'AB'[event.line]} is back")

    def summary(self, counters: Counters, seconds: float) -> str:
        rate = self.messages / seconds if seconds else 0.0
        return (
            f"{self.messages:,} messages in {seconds:.1f} s ({rate:,.0f}/s), {self.lost:,} lost, "
            f"{counters['source_duplicates']:,} duplicates, {counters['retransmissions_requested']:,} requests"
            f"{_dropped(counters)}"
        )


async def take_soup(client: SoupClient, report: ListenReport, is_over: Callable[[], bool]) -> None:
    """Receive messages of a client until its session ends or `is_over` returns True."""

    async def take_all(events: AsyncIterator[SoupEvent]) -> None:
        async for event in events:
            report.take(event)

    taking = asyncio.ensure_future(take_all(client.events()))
    try:
        while not taking.done() and not is_over():
            await asyncio.wait([taking], timeout=LOOK_SECONDS)
    finally:
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking


def _dropped(counters: Counters) -> str:
    """The dropped datagrams by cause, as text; empty if none was dropped."""
    causes = {str(cause): count for cause, count in counters.by_cause("packets_dropped").items() if count}
    if not causes:
        return ""
    told = ", ".join(f"{cause} {count:,}" for cause, count in sorted(causes.items()))
    return f"; {sum(causes.values()):,} datagrams dropped: {told}"
