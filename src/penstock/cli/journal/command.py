"""`penstock journal`: list, verify, print and serve journals."""

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError, JournalCorruptError, JournalError
from penstock.capture.core.record_text import json_line, text_lines
from penstock.cli.common.times import parse_time
from penstock.journal import JournalReader, Record
from penstock.journal.client import follow_remote
from penstock.journal.live.files import Directory, boot_id
from penstock.journal.live.verify import SegmentReport, inspect, missing_segments
from penstock.journal.server import JournalServer
from penstock.net.live.event_loop import run_agent
from penstock.net.secret import Secret, read_secret
from penstock.security.live.journal_access import JournalAccess, JournalLogin, admin_access

COLUMNS = ("first", "last", "bytes", "from (UTC)", "to", "state")
DEFAULT_PORT = 7_410
REMOTE = "tcp://"

app = typer.Typer(help="List, verify, print and serve journals.", no_args_is_help=True)

Show: TypeAlias = Callable[[Record], None]
JournalPath = Annotated[Path, typer.Argument(metavar="PATH", help="The journal's directory.")]
ConnectOption = Annotated[str, typer.Option(metavar="URL", help="The administration server, for tokens.")]
CredentialsOption = Annotated[str, typer.Option(metavar="FILE", help="The credentials file for --connect.")]
SecretFile = Annotated[Path | None, typer.Option(help="A file with the secret that both sides share.")]


@app.command("ls")
def ls(
    path: JournalPath,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per segment, for programs.")] = False,
) -> None:
    """Show the segments of a journal: their records, times, sizes and states."""
    reports = list(_inspected(path))
    if json:
        for report in reports:
            typer.echo(msgspec.json.encode(report))
        return
    rows = [COLUMNS, *map(_row, reports)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows if reports else ():
        typer.echo("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))
    typer.echo(_durable(path))


@app.command("verify")
def verify(path: JournalPath) -> None:
    """Verify every record of a journal. The exit status is 1 if the journal is damaged."""
    reports = list(_inspected(path))
    missing = missing_segments(Directory(path))
    problems = [report.problem for report in reports if report.problem] + ([str(missing)] if missing else [])
    for problem in problems:
        typer.echo(f"damaged: {problem}")
    for report in reports:
        if report.state == "torn":
            typer.echo(f"{report.name}: incomplete write at its end; this is not damage, the next writer truncates it")
    records = sum(report.next_sequence - report.first_sequence for report in reports)
    size = sum(report.size for report in reports)
    typer.echo(f"{records:,} good records in {len(reports):,} segments, {size:,} bytes")
    if problems:
        raise JournalCorruptError(
            f"{len(problems)} segments are damaged",
            where=str(path),
            hint="no file was changed; restore the segments above from a copy",
        )


@app.command("cat")
def cat(
    place: Annotated[
        str,
        typer.Argument(
            metavar="PATH|tcp://HOST:PORT", help="A journal's directory, or the address of a journal server."
        ),
    ],
    from_: Annotated[int | None, typer.Option("--from", min=1, help="The first sequence number.")] = None,
    from_time: Annotated[
        str | None,
        typer.Option(help="The first time: ISO 8601 (default UTC) or nanoseconds since 1970."),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Maximum number of records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new records until Ctrl-C.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per record, for programs.")] = False,
    secret_file: SecretFile = None,
    ca_file: Annotated[Path | None, typer.Option(help="CA certificates for TLS.")] = None,
    connect: ConnectOption = "",
    credentials: CredentialsOption = "",
) -> None:
    """Print records. Penstock packets are shown with their messages and fields."""
    if from_ is not None and from_time is not None:
        raise ConfigurationError("--from and --from-time exclude each other", hint="use one of them")
    time_ns = None if from_time is None else parse_time(from_time, "--from-time")

    def show(record: Record) -> None:
        typer.echo(json_line(record) if json else "\n".join(text_lines(record)))
        if follow:
            sys.stdout.flush()

    if place.startswith(REMOTE):
        host, port = _parse_address(place.removeprefix(REMOTE))
        tls = None if ca_file is None else ssl.create_default_context(cafile=str(ca_file))
        access = admin_access(connect, credentials)
        records = follow_remote(
            host,
            port,
            from_sequence=from_,
            from_time_ns=time_ns,
            is_live=follow,
            secret=_secret(secret_file),
            tls=tls,
            log_in=None if access is None else JournalLogin(access),
        )
        asyncio.run(_show_remote(records, count, show))
        return
    if not follow:
        _require_journal(Path(place))
    with JournalReader.open(place) as reader:
        source = reader.follow if follow else reader.read
        _show_local(source(from_sequence=from_, from_time_ns=time_ns), count, show)


@app.command("serve")
def serve(
    path: JournalPath,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="TCP port; 0 takes a free one.")] = DEFAULT_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on; other addresses than loopback need TLS and a secret.")
    ] = ("127.0.0.1"),
    secret_file: SecretFile = None,
    certificate: Annotated[Path | None, typer.Option(help="This server's certificate and key for TLS, PEM.")] = None,
    connect: Annotated[
        str,
        typer.Option(metavar="URL", help="The administration server: followers need its tokens, even on this host."),
    ] = "",
    credentials: CredentialsOption = "",
    name: Annotated[
        str, typer.Option(help="The journal's name; with --connect, followers need a grant for journal.NAME.")
    ] = "",
) -> None:
    """Serve a journal to followers on other machines until Ctrl-C."""
    access = admin_access(connect, credentials)
    if access is not None and not name:
        raise ConfigurationError(
            "--connect needs --name", hint="a grant to receive journal.NAME allows reading the journal"
        )
    guard = None if access is None else JournalAccess(access, name)
    server = JournalServer(
        path,
        host=host,
        port=port,
        node=name or "journal",
        secret=_secret(secret_file),
        tls=_server_tls(certificate),
        check_token=None if guard is None else guard.check,
    )

    async def main(stop: asyncio.Event) -> None:
        async with server:
            typer.echo(f"serving {path} on {host}:{server.port}, Ctrl-C stops it")
            sys.stdout.flush()
            await stop.wait()

    with guard or contextlib.nullcontext():
        status = run_agent(main, name="journal")
    raise typer.Exit(status)


def _row(report: SegmentReport) -> tuple[str, ...]:
    last = f"{report.next_sequence - 1:,}" if report.next_sequence > report.first_sequence else "-"
    times = _time(report.first_time_ns), _time(report.last_time_ns)
    return f"{report.first_sequence:,}", last, f"{report.size:,}", *times, report.state


def _require_journal(path: Path) -> None:
    """Refuse a path without a journal, so that a wrong path does not look like an empty journal."""
    directory = Directory(path)
    if not directory.first_sequences() and directory.read_mark() is None:
        raise JournalError("contains no journal", where=str(path), hint="a journal's directory has *.journal files")


def _inspected(path: Path) -> Iterator[SegmentReport]:
    """Report on every segment, with a progress bar on a terminal."""
    _require_journal(path)
    directory = Directory(path)
    names = directory.first_sequences()
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("reading", total=len(names))
        yield from inspect(directory, lambda size: progress.advance(task))


def _show_local(records: Iterator[Record], count: int | None, show: Show) -> None:
    for shown, record in enumerate(records, start=1):
        show(record)
        if shown == count:
            return


async def _show_remote(records: AsyncGenerator[Record, None], count: int | None, show: Show) -> None:
    shown = 0
    async with contextlib.aclosing(records):
        async for record in records:
            show(record)
            shown += 1
            if shown == count:
                return


def _durable(path: Path) -> str:
    mark = Directory(path).read_mark()
    if mark is None:
        return "no durability mark: all valid records count"
    when = "" if mark.boot_id == boot_id() else ", before the last boot"
    return f"guaranteed to be on the disk up to {mark.durable:,}{when}"


def _time(time_ns: int | None) -> str:
    if time_ns is None:
        return "-"
    seconds, rest_ns = divmod(time_ns, NS_PER_SECOND)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000_000:03}"
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"


def _parse_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65_536:
        raise ConfigurationError(f"{address!r} is not an address", hint="write tcp://HOST:PORT")
    return host, int(port)


def _secret(path: Path | None) -> Secret | None:
    return None if path is None else read_secret(path)


def _server_tls(certificate: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate)
    except OSError as error:
        raise ConfigurationError(f"cannot be loaded: {error}", where=str(certificate)) from None
    return context
