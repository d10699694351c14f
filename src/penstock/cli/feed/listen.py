"""`penstock feed listen`: counts the messages of a source stream, to test lines, requests and logins."""

import asyncio
import time

import typer
from rich.console import Console

from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.feed.config import LineConfig
from penstock.feed.formats import DatagramFormat
from penstock.feed.live.line_receiver import LineReceiver
from penstock.feed.live.listen_report import LOOK_SECONDS, ListenReport, take_soup
from penstock.feed.live.soup_client import SoupClient, SoupClientConfig
from penstock.net.udp import Address, Channel


def listen_mold(
    channels: list[Channel], framing: DatagramFormat, requests: Address | None, config: LineConfig, seconds: float
) -> None:
    listened = ListenReport(_say)
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


def listen_soup(config: SoupClientConfig, seconds: float) -> None:
    listened = ListenReport(_say)
    start = time.monotonic()
    client = SoupClient(config)
    with interruptible() as interrupt:
        asyncio.run(take_soup(client, listened, lambda: _is_over(listened, interrupt, start, seconds)))
    typer.echo(listened.summary(client.counters, time.monotonic() - start))


def _is_over(listened: ListenReport, interrupt: Interrupt, start: float, seconds: float) -> bool:
    return listened.has_ended or interrupt.is_wanted or time.monotonic() - start >= seconds


def _say(text: str) -> None:
    Console(stderr=True, highlight=False, markup=False).print(f"-- {text}")
