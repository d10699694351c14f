"""`penstock feed listen`: what comes of a source stream, counted; to see whether lines, requests and logins work."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

import typer
from rich.console import Console

from penstock.base.counters import Counters
from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.cli.common.readable import printable
from penstock.feed.config import LineConfig
from penstock.feed.core.lines.events import (
    LineHeard,
    LineInstruction,
    LineSilent,
    SessionEnded,
    SessionStarted,
    SourceLost,
    SourceReady,
)
from penstock.feed.formats import DatagramFormat
from penstock.feed.live.line_receiver import LineReceiver
from penstock.feed.live.soup_client import SoupClient, SoupClientConfig, SoupEvent
from penstock.net.udp import Address, Channel

LOOK_SECONDS = 0.2


class Listened:
    """What has come so far; everything but messages is a line on standard error."""

    def __init__(self) -> None:
        self.messages = 0
        self.lost = 0
        self.has_ended = False
        self._console = Console(stderr=True, highlight=False, markup=False)

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

    def _say(self, text: str) -> None:
        self._console.print(f"-- {text}")

    def summary(self, counters: Counters, seconds: float) -> str:
        rate = self.messages / seconds if seconds else 0.0
        return (
            f"{self.messages:,} messages in {seconds:.1f} s ({rate:,.0f}/s), {self.lost:,} lost, "
            f"{counters['source_duplicates']:,} duplicates, {counters['retransmissions_requested']:,} requests"
            f"{_dropped(counters)}"
        )


def listen_mold(
    channels: list[Channel], framing: DatagramFormat, requests: Address | None, config: LineConfig, seconds: float
) -> None:
    listened = Listened()
    start = time.monotonic()
    with (
        interruptible() as interrupt,
        LineReceiver(channels, framing, request_address=requests, config=config) as receiver,
    ):
        while not _is_over(listened, interrupt, start, seconds):
            for event in receiver.receive(LOOK_SECONDS):
                listened.take(event)
    typer.echo(listened.summary(receiver.counters, time.monotonic() - start))
    if not listened.messages and receiver.counters["packets_dropped"]:
        raise typer.Exit(1)


def _dropped(counters: Counters) -> str:
    """The dropped datagrams by cause, as text; empty if none was dropped."""
    causes = {str(cause): count for cause, count in counters.by_cause("packets_dropped").items() if count}
    if not causes:
        return ""
    told = ", ".join(f"{cause} {count:,}" for cause, count in sorted(causes.items()))
    return f"; {sum(causes.values()):,} datagrams dropped: {told}"


def listen_soup(config: SoupClientConfig, seconds: float) -> None:
    listened = Listened()
    start = time.monotonic()
    client = SoupClient(config)
    with interruptible() as interrupt:
        asyncio.run(_listen_soup(client, listened, lambda: _is_over(listened, interrupt, start, seconds)))
    typer.echo(listened.summary(client.counters, time.monotonic() - start))


async def _listen_soup(client: SoupClient, listened: Listened, is_over: Callable[[], bool]) -> None:
    async def take_all(events: AsyncIterator[SoupEvent]) -> None:
        async for event in events:
            listened.take(event)

    taking = asyncio.ensure_future(take_all(client.events()))
    try:
        while not taking.done() and not is_over():
            await asyncio.wait([taking], timeout=LOOK_SECONDS)
    finally:
        taking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await taking


def _is_over(listened: Listened, interrupt: Interrupt, start: float, seconds: float) -> bool:
    return listened.has_ended or interrupt.is_wanted or time.monotonic() - start >= seconds
