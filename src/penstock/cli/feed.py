"""`penstock feed`: make, look into and play what an exchange would send."""

import contextlib
import gzip
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.base.errors import ConfigurationError
from penstock.cli.interrupt import interruptible
from penstock.feed.generator import GeneratorConfig, ItchGenerator
from penstock.feed.play_config import PlayerConfig
from penstock.feed.player import MoldPlayer
from penstock.net.udp import Channel

app = typer.Typer(no_args_is_help=True, help="Make, look into and play what an exchange would send.")

SeedOption = Annotated[int, typer.Option(min=0, help="Which day; the same number means the same bytes.")]
SymbolsOption = Annotated[int, typer.Option(min=1, max=20_000, help="How many symbols the made-up market has.")]
MessagesOption = Annotated[int, typer.Option(min=0, help="Messages of order flow; the day's frame comes on top.")]


@app.command("generate")
def generate(
    file: Annotated[Path, typer.Argument(help="Where to write; compressed when its name ends in .gz.")],
    messages: MessagesOption = 1_000_000,
    symbols: SymbolsOption = 1_000,
    seed: SeedOption = 1,
) -> None:
    """Write a day of made-up ITCH 5.0 order flow: valid, with every message type, the same for the same seed.

    On Ctrl-C the file ends with a whole message.
    """
    generator = ItchGenerator(GeneratorConfig(seed=seed, symbols=symbols, messages=messages))
    size = 0
    with interruptible() as interrupt, _created(file) as stream, _progress() as progress:
        task = progress.add_task(str(file), total=messages)
        while not interrupt.is_wanted and len(blocks := generator.blocks(16_384)):
            stream.write(blocks)
            size += len(blocks)
            progress.update(task, completed=generator.next_sequence)
    what = "the whole day" if generator.is_done else "not the whole day"
    typer.echo(f"{generator.next_sequence - 1:,} messages, {size:,} bytes before any compression, {what}: {file}")


@contextlib.contextmanager
def _created(file: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    try:
        with file.open("wb") as plain:
            if file.suffix != ".gz":
                yield plain
            else:
                with gzip.GzipFile("", "wb", 4, plain, mtime=0) as packed:
                    yield packed
    except OSError as error:
        raise ConfigurationError(f"cannot be written: {error.strerror}", where=str(file)) from None


def _progress() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal)


@app.command("play")
def play(
    lines: Annotated[
        list[str], typer.Argument(help="Where to send: GROUP:PORT of each line, like 239.255.10.1:26400.")
    ],
    file: Annotated[str, typer.Option(help="An ITCH file, plain or .gz; without it the day is made up.")] = "",
    messages: MessagesOption = 1_000_000,
    symbols: SymbolsOption = 1_000,
    seed: SeedOption = 1,
    speed: Annotated[float, typer.Option(min=0, help="Times the day's own speed; 0 as fast as possible.")] = 1.0,
    rate: Annotated[float, typer.Option(min=0, help="Messages per second instead; 0 goes by --speed.")] = 0.0,
    loss: Annotated[list[float] | None, typer.Option(min=0, max=1, help="Share lost on each line, in order.")] = None,
    session: Annotated[str, typer.Option(help="The session's name, at most 10 letters.")] = "PENSTOCK",
    interface: Annotated[str, typer.Option(help="Address of the interface to send on.")] = "127.0.0.1",
    request_port: Annotated[int, typer.Option(min=0, max=65_535, help="Where lost messages are asked for.")] = 0,
) -> None:
    """Play a day as MoldUDP64 on one or more lines, and send again what somebody asks for.

    At the end of the day it says so and goes on answering requests; Ctrl-C ends it.
    """
    config = PlayerConfig(
        file=file,
        generate=GeneratorConfig(seed=seed, symbols=symbols, messages=messages),
        speed=speed,
        rate=rate,
        session=session,
        lines=tuple(Channel.parse(line, interface=interface) for line in lines),
        loss=tuple(loss or ()),
        seed=seed,
        host=interface,
        port=request_port,
    )
    with interruptible() as interrupt, MoldPlayer(config) as player, _sent() as progress:
        typer.echo(f"requests are taken at {interface}:{player.request_port}", err=True)
        task = progress.add_task("sent", total=None)
        stop = threading.Event()
        thread = threading.Thread(target=player.run, args=(stop,), name="penstock-player")
        thread.start()
        while not interrupt.is_wanted and thread.is_alive():
            thread.join(0.2)
            progress.update(task, completed=player.next_sequence - 1)
        stop.set()
        thread.join()
        sent, discarded = player.next_sequence - 1, player.counters["datagrams_discarded"]
        answered = player.counters["source_requests_answered"]
    typer.echo(f"{sent:,} messages sent, {discarded:,} datagrams left out on purpose, {answered:,} requests answered")


def _sent() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.completed:,} messages sent"),)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
