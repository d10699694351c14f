"""The players of `penstock feed play`, run until their end or Ctrl-C."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import typer
from rich.console import Console
from rich.status import Status

from penstock.base.log import logger
from penstock.cli.interrupt import Interrupt, interruptible
from penstock.feed.formats.stream import ByteStream
from penstock.feed.generator import GeneratorConfig, ItchGenerator
from penstock.feed.history import Pace, Piece, pieces
from penstock.feed.mold_player import MoldPlayer, MoldPlayerConfig
from penstock.feed.soup_player import PIECE_SIZE, SoupPlayer, SoupPlayerConfig
from penstock.feed.sources import open_file

READ_SIZE = 1024 * 1024
SHOW_SECONDS = 0.25

log = logger("feed")


def play_mold(
    config: MoldPlayerConfig, file: Path | None, made: GeneratorConfig | None, pace: Pace, linger: float
) -> None:
    with interruptible() as interrupt, MoldPlayer(config) as player:
        host, port = player.request_address
        log.info("playing", line_a=str(config.line_a), line_b=str(config.line_b), requests=f"{host}:{port}")
        with _shown() as show:
            played = player.play(
                show(_pieces(file, made, player.piece_size)), pace, should_stop=lambda: interrupt.is_wanted
            )
            player.linger(linger, should_stop=lambda: interrupt.is_wanted)
        player.end()
    counters = player.counters
    typer.echo(
        f"{played:,} messages played in {counters['packets_sent']:,} packets; {counters['datagrams_discarded']:,} not "
        f"sent on purpose; {counters['retransmissions_served']:,} requests answered, "
        f"{counters['retransmissions_unavailable']:,} not"
    )


def play_soup(
    config: SoupPlayerConfig, file: Path | None, made: GeneratorConfig | None, pace: Pace, linger: float
) -> None:
    with interruptible() as interrupt:
        played, player = asyncio.run(_play_soup(config, _pieces(file, made, PIECE_SIZE), pace, linger, interrupt))
    counters = player.counters
    typer.echo(
        f"{played:,} messages played to {counters['connections_opened']:,} logins; "
        f"{counters['connections_refused']:,} refused"
    )


async def _play_soup(
    config: SoupPlayerConfig, tape: Iterator[Piece], pace: Pace, linger: float, interrupt: Interrupt
) -> tuple[int, SoupPlayer]:
    player = SoupPlayer(config)
    async with player:
        with _shown() as show:
            played = await player.play(show(tape), pace, should_stop=lambda: interrupt.is_wanted)
            player.end()
            deadline = time.monotonic() + linger
            while time.monotonic() < deadline and not interrupt.is_wanted:
                await asyncio.sleep(0.05)
    return played, player


def _pieces(file: Path | None, made: GeneratorConfig | None, size_max: int) -> Iterator[Piece]:
    if file is None:
        generator = ItchGenerator(made)
        yield from pieces(iter(lambda: generator.blocks(), b""), size_max)
        return
    with open_file(file) as opened:
        stream, size = ByteStream(opened), 0
        for piece in pieces(iter(lambda: stream.read(READ_SIZE), b""), size_max):
            size += len(piece.blocks)
            yield piece
    if stream.damage is not None or stream.offset != size:
        log.warning("cut_off", file=str(file), offset=size, damage=str(stream.damage or "a message is not whole"))


@contextlib.contextmanager
def _shown() -> Iterator[Callable[[Iterator[Piece]], Iterator[Piece]]]:
    """Passes pieces through, and shows on a terminal how far they are."""
    console = Console(stderr=True, highlight=False)

    def show(tape: Iterator[Piece], status: Status) -> Iterator[Piece]:
        shown = 0.0
        for piece in tape:
            now = time.monotonic()
            if now - shown >= SHOW_SECONDS:
                shown = now
                status.update(f"{piece.first_sequence - 1:,} messages played")
            yield piece

    with console.status("playing") as status:
        yield lambda tape: show(tape, status)
