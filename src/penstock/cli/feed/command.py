"""`penstock feed`: generate, inspect, play and receive exchange feeds."""

import contextlib
import gzip
import os
import threading
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import IO, Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.base.errors import ConfigurationError
from penstock.base.extensions import load_modules
from penstock.base.files import create_or_open
from penstock.cli.clock import parse_address
from penstock.cli.common.channel import INTERFACE, FromStartOption, InterfaceOption
from penstock.cli.common.file_options import FormatOption
from penstock.cli.common.interrupt import interruptible
from penstock.cli.common.table_options import ModulesOption
from penstock.cli.feed.listen import listen_mold, listen_soup
from penstock.cli.feed.report import report_text
from penstock.cli.feed.soup import play_soup
from penstock.feed.config import LineConfig
from penstock.feed.core.play.config import PlayerConfig
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator
from penstock.feed.formats import datagram_format
from penstock.feed.formats.stream import ByteStream
from penstock.feed.live.play.mold_player import MoldPlayer
from penstock.feed.live.soup_client import SoupClientConfig
from penstock.feed.recorded.files import guess_format, open_file
from penstock.feed.recorded.inspect import inspect
from penstock.net.udp import Channel

app = typer.Typer(no_args_is_help=True, help="Generate, inspect, play and receive exchange feeds.")

SeedOption = Annotated[int, typer.Option(min=0, help="Seed of the generated day; equal seeds generate equal bytes.")]
SymbolsOption = Annotated[int, typer.Option(min=1, max=20_000, help="Number of symbols of the generated market.")]
MessagesOption = Annotated[
    int, typer.Option(min=0, help="Number of order flow messages; messages that frame the day are added.")
]


@app.command("generate")
def generate(
    file: Annotated[Path, typer.Argument(help="The output file; compressed if its name ends in .gz.")],
    messages: MessagesOption = 1_000_000,
    symbols: SymbolsOption = 1_000,
    seed: SeedOption = 1,
) -> None:
    """Generate a day of ITCH 5.0 order flow: valid, with every message type, reproducible by seed.

    After Ctrl-C the file ends with a complete message.
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
        with open(create_or_open(file, os.O_WRONLY | os.O_TRUNC), "wb") as plain:
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
        list[str] | None, typer.Argument(help="The lines to send on: GROUP:PORT of each, like 239.255.10.1:26400.")
    ] = None,
    soup: Annotated[bool, typer.Option("--soup", help="Serve SoupBinTCP instead of sending MoldUDP64.")] = False,
    file: Annotated[
        str, typer.Option(help="A file of ITCH messages; it may be compressed. Default: a generated day.")
    ] = "",
    messages: MessagesOption = 1_000_000,
    symbols: SymbolsOption = 1_000,
    seed: SeedOption = 1,
    speed: Annotated[float, typer.Option(min=0, help="Multiple of the original speed; 0: as fast as possible.")] = 1.0,
    rate: Annotated[float, typer.Option(min=0, help="Messages per second; 0: use --speed.")] = 0.0,
    loss: Annotated[
        list[float] | None, typer.Option(min=0, max=1, help="Share of datagrams lost on each line, in order.")
    ] = None,
    session: Annotated[str, typer.Option(help="The session's name, at most 10 letters.")] = "PENSTOCK",
    interface: Annotated[str, typer.Option(help="Address of the interface to send on.")] = "127.0.0.1",
    request_port: Annotated[
        int,
        typer.Option(
            "--port", "--request-port", min=0, max=65_535, help="Port for repair requests, or for SoupBinTCP."
        ),
    ] = 0,
    user: Annotated[str, typer.Option(help="The SoupBinTCP user; empty: any user, on loopback only.")] = "",
    password_file: Annotated[str, typer.Option(help="A file with the password.")] = "",
) -> None:
    """Play a day as MoldUDP64 on one or more lines and answer repair requests, or serve it over SoupBinTCP.

    After the end of the day, the player continues to answer requests until Ctrl-C.
    """
    config = PlayerConfig(
        protocol="soupbintcp" if soup else "moldudp64",
        file=file,
        generate=GeneratorConfig(seed=seed, symbols=symbols, messages=messages),
        speed=speed,
        rate=rate,
        session=session,
        lines=tuple(Channel.parse(line, interface=interface) for line in lines or ()),
        loss=tuple(loss or ()),
        seed=seed,
        host=interface,
        port=request_port,
        username=user,
        password_file=password_file,
    )
    if soup:
        play_soup(config)
        return
    with interruptible() as interrupt, MoldPlayer(config) as player, _sent() as progress:
        typer.echo(f"repair requests are accepted at {interface}:{player.request_port}", err=True)
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
    typer.echo(f"{sent:,} messages sent, {discarded:,} datagrams dropped on purpose, {answered:,} requests answered")


def _sent() -> Progress:
    console = Console(stderr=True)
    columns = (TextColumn("{task.completed:,} messages sent"),)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


@app.command("info")
def info(
    file: Annotated[
        Path, typer.Argument(help="ITCH messages, text, a capture (pcap, pcapng); gzip, zstd, zip or plain.")
    ],
    has_header: Annotated[bool, typer.Option("--header", help="The first line of a text names its columns.")] = False,
    file_format: FormatOption = None,
    module: ModulesOption = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object, for programs.")] = False,
) -> None:
    """Inspect a file: messages by type, sessions, gaps, duplicates, and damaged parts.

    The exit status is 1 if the file is damaged, or if it is not a known feed.
    """
    load_modules(module or ())
    with open_file(file) as opened:
        stream = ByteStream(opened)
        report = inspect(stream, file_format or guess_format(file, stream), has_header=has_header)
    typer.echo(msgspec.json.encode(report) if json else report_text(report))
    if report.is_damaged or not report.is_readable:
        raise typer.Exit(1)


@app.command("listen")
def listen(
    lines: Annotated[
        list[str] | None, typer.Argument(help="GROUP:PORT of each line of datagrams; none for SoupBinTCP.")
    ] = None,
    interface: InterfaceOption = INTERFACE,
    server: Annotated[str, typer.Option(help="HOST:PORT of the request server, or of SoupBinTCP.")] = "",
    user: Annotated[str, typer.Option(help="The SoupBinTCP user.")] = "",
    password: Annotated[
        str, typer.Option(envvar="PENSTOCK_FEED_PASSWORD", help="The password; preferably set in the environment.")
    ] = "",
    from_start: FromStartOption = False,
    framing: Annotated[str, typer.Option(help="The format of the datagrams.")] = "moldudp64",
    module: ModulesOption = None,
    seconds: Annotated[float, typer.Option(min=0.0, help="End after this time. Default: with the session.")] = inf,
) -> None:
    """Receive a feed from a player or an exchange, and report received, lost and requested messages.

    The exit status is 1 if datagrams arrived but none of them was valid.
    """
    load_modules(module or ())
    address = parse_address(server) if server else None
    if lines:
        channels = [Channel.parse(line, interface=interface) for line in lines]
        config = LineConfig(join="start" if from_start else "live")
        listen_mold(channels, datagram_format(framing), address, config, seconds)
    elif address is None:
        raise ConfigurationError(
            "no source to receive from", hint="give the lines, or a SoupBinTCP server with --server"
        )
    else:
        host, port = address
        sequence = 1 if from_start else 0
        login = SoupClientConfig(host=host, port=port, user=user, password=password, sequence=sequence)
        listen_soup(login, seconds)
