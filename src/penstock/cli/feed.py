"""`penstock feed`: make, look into and play what an exchange would send."""

import contextlib
import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.base.errors import ConfigurationError
from penstock.cli.interrupt import interruptible
from penstock.feed.generator import GeneratorConfig, ItchGenerator

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
