"""`penstock feed`: make, look into and play what an exchange would send."""

import contextlib
import gzip
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import IO, Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.base.errors import ConfigurationError
from penstock.cli.channel import INTERFACE, FromStartOption, InterfaceOption
from penstock.cli.feedlisten import listen_mold, listen_soup
from penstock.cli.feedplay import play_mold, play_soup
from penstock.cli.feedreport import report_text
from penstock.cli.interrupt import interruptible
from penstock.feed.config import LineConfig
from penstock.feed.formats import MoldUDP64
from penstock.feed.formats.stream import ByteStream
from penstock.feed.generator import GeneratorConfig, ItchGenerator
from penstock.feed.history import Pace
from penstock.feed.inspect import inspect
from penstock.feed.mold_player import MoldPlayerConfig
from penstock.feed.soup_client import SoupClientConfig
from penstock.feed.soup_player import SoupPlayerConfig
from penstock.feed.sources import guess_format, open_file
from penstock.net.udp import Channel

LINE_B = str(MoldPlayerConfig().line_b)

Protocol = Literal["mold", "soup"]

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


@app.command("info")
def info(
    file: Annotated[Path, typer.Argument(help="ITCH messages, text, or a capture (pcap, pcapng); compressed or not.")],
    has_header: Annotated[bool, typer.Option("--header", help="The first line of a text names its columns.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Say what is in a file: messages by type, sessions, gaps, repetitions, and what is damaged and where.

    The exit status is 1 when something is damaged.
    """
    with open_file(file) as opened:
        stream = ByteStream(opened)
        report = inspect(stream, guess_format(file, stream), has_header=has_header)
    typer.echo(msgspec.json.encode(report) if json else report_text(report))
    if report.damages_total:
        raise typer.Exit(1)


@app.command("play")
def play(
    file: Annotated[
        Path | None, typer.Argument(help="ITCH messages, compressed or not; without it --generate.")
    ] = None,
    generated: Annotated[bool, typer.Option("--generate", help="Play a made-up day instead of a file.")] = False,
    protocol: Annotated[
        Protocol, typer.Option("--as", help="MoldUDP64 on lines A and B with a request server, or SoupBinTCP.")
    ] = "mold",
    speed: Annotated[float, typer.Option(min=0.0, help="So many times as fast as it happened.")] = 0.0,
    rate: Annotated[float, typer.Option(min=0.0, help="So many messages per second.")] = 0.0,
    flat_out: Annotated[bool, typer.Option("--flat-out", help="As fast as possible.")] = False,
    session: Annotated[str, typer.Option(help="The session's name, at most ten letters.")] = "PENSTOCK",
    line_a: Annotated[str, typer.Option(help="Group and port of line A.")] = str(MoldPlayerConfig().line_a),
    line_b: Annotated[str, typer.Option(help="Group and port of line B; empty for none.")] = LINE_B,
    interface: InterfaceOption = INTERFACE,
    port: Annotated[int, typer.Option(min=-1, help="Of the request server or SoupBinTCP; 0 takes a free one.")] = -1,
    user: Annotated[str, typer.Option(help="Who may log in, over SoupBinTCP.")] = SoupPlayerConfig().user,
    password: Annotated[
        str, typer.Option(envvar="PENSTOCK_FEED_PASSWORD", help="The password; better in the environment.")
    ] = SoupPlayerConfig().password,
    loss_a: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of line A's packets not to send.")] = 0.0,
    loss_b: Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of line B's packets not to send.")] = 0.0,
    messages: MessagesOption = 1_000_000,
    symbols: SymbolsOption = 1_000,
    seed: SeedOption = 1,
    linger: Annotated[float, typer.Option(min=0.0, help="Seconds to answer requests after the end.")] = 5.0,
) -> None:
    """Be the exchange: play a file or a made-up day to whoever listens. Nothing leaves this machine unless told.

    A file is played at the speed at which it happened, a made-up day at 20,000 messages per second, unless told.
    """
    if (file is None) != generated:
        raise ConfigurationError("play needs a file, or --generate, and not both")
    if sum(map(bool, (speed, rate, flat_out))) > 1:
        raise ConfigurationError("--speed, --rate and --flat-out exclude each other")
    if not speed and not rate and not flat_out:
        speed, rate = (0.0, 20_000.0) if generated else (1.0, 0.0)
    pace = Pace(speed=speed, rate=rate)
    made = GeneratorConfig(seed=seed, symbols=symbols, messages=messages) if generated else None
    if protocol == "mold":
        mold = MoldPlayerConfig(
            session=session,
            line_a=Channel.parse(line_a, interface=interface),
            line_b=Channel.parse(line_b, interface=interface) if line_b else None,
            request_host=interface,
            request_port=MoldPlayerConfig().request_port if port < 0 else port,
            loss_a=loss_a,
            loss_b=loss_b,
            seed=seed,
        )
        play_mold(mold, file, made, pace, linger)
    else:
        soup = SoupPlayerConfig(
            session=session,
            host=interface,
            port=SoupPlayerConfig().port if port < 0 else port,
            user=user,
            password=password,
        )
        play_soup(soup, file, made, pace, linger)


@app.command("listen")
def listen(
    protocol: Annotated[Protocol, typer.Option("--as", help="What is played: MoldUDP64 or SoupBinTCP.")] = "mold",
    line_a: Annotated[str, typer.Option(help="Group and port of line A.")] = str(MoldPlayerConfig().line_a),
    line_b: Annotated[str, typer.Option(help="Group and port of line B; empty for none.")] = LINE_B,
    interface: InterfaceOption = INTERFACE,
    host: Annotated[str, typer.Option(help="Where requests are answered, or logins.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=-1, help="Its port.")] = -1,
    user: Annotated[str, typer.Option(help="Who logs in, over SoupBinTCP.")] = SoupPlayerConfig().user,
    password: Annotated[
        str, typer.Option(envvar="PENSTOCK_FEED_PASSWORD", help="The password; better in the environment.")
    ] = SoupPlayerConfig().password,
    from_start: FromStartOption = False,
    seconds: Annotated[float, typer.Option(min=0.0, help="End after so long; without it, with the session.")] = inf,
) -> None:
    """Take in what a player or an exchange sends, and say what came, what was lost and what was asked for."""
    if protocol == "mold":
        channels = [Channel.parse(text, interface=interface) for text in (line_a, line_b) if text]
        requests = (host, MoldPlayerConfig().request_port if port < 0 else port)
        config = LineConfig(join="start" if from_start else "live")
        listen_mold(channels, MoldUDP64(), requests, config, seconds)
    else:
        chosen = SoupPlayerConfig().port if port < 0 else port
        sequence = 1 if from_start else 0
        listen_soup(SoupClientConfig(host=host, port=chosen, user=user, password=password, sequence=sequence), seconds)
