"""`penstock pipeline replay`: publish recorded messages again."""

import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import ConfigurationError, NotFoundError
from penstock.cli.common.channel import CHANNEL, INTERFACE, InterfaceOption, MapOption
from penstock.cli.common.interrupt import interruptible
from penstock.middleware.live import MulticastPublisher
from penstock.net.udp import Channel
from penstock.topics import GroupMap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.spark.pipeline.playing import Chosen, Play
    from penstock.spark.pipeline.replay import Played

SPEED_MAX = 1e9
SHOW_SECONDS = 0.2


def replay(
    recorded: Annotated[
        str, typer.Argument(metavar="ARCHIVE", help="An archive, or a journal: a directory or tcp://.")
    ],
    since: Annotated[str, typer.Option("--from", metavar="TIME", help="2024-01-02T14:30:00, in UTC.")] = "",
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="The end of the replay, exclusive.")] = "",
    speed: Annotated[
        str, typer.Option(metavar="N|max", help="1: original speed, 10: ten times as fast, max: without pauses.")
    ] = "1",
    topics: Annotated[list[str] | None, typer.Option(help="Only matching topics; may be repeated.")] = None,
    stream: Annotated[list[int] | None, typer.Option(help="Only this source stream; may be repeated.")] = None,
    to_channel: Annotated[str, typer.Option(metavar="GROUP:PORT", help="The channel to publish on.")] = CHANNEL,
    interface: InterfaceOption = INTERFACE,
    group_map: MapOption = None,
) -> None:
    """Publish recorded messages again: on their topics, with their numbers and contents, at their pace or faster.

    Every packet is marked as a replay. Subscribers receive them only on request: penstock sub --accept replay.
    """
    from penstock.spark.pipeline.playing import BEGINNING_NS, END_NS, Chosen
    from penstock.spark.pipeline.replay import REPLAYING
    from penstock.spark.pipeline.replay import replay as play

    chosen = Chosen(
        _time_ns(since, BEGINNING_NS, "--from"), _time_ns(until, END_NS, "--to"), topics or (), stream or ()
    )
    if chosen.from_ns >= chosen.to_ns:
        raise ConfigurationError("--from is not before --to")
    factor = _speed(speed)
    plays = _plays(recorded, chosen)
    groups = GroupMap.load(group_map) if group_map is not None else None
    channel = Channel.parse(to_channel, interface=interface)
    status = Console(stderr=True, highlight=False).status("reading")
    shown = 0.0

    def show(played: "Played") -> None:
        nonlocal shown
        if time.monotonic() - shown >= SHOW_SECONDS:
            shown = time.monotonic()
            status.update(f"{played.messages:,} messages, at {_time_text(played.last_time_ns)}")

    started = time.monotonic()
    with (
        interruptible() as interrupt,
        MulticastPublisher(channel, epoch=int(time.time()) & 0xFFFFFFFF, config=REPLAYING, groups=groups) as publisher,
        status,
    ):
        played = play(plays, publisher, speed=factor, is_wanted=lambda: not interrupt.is_wanted, on_progress=show)
        took = time.monotonic() - started
    sys.stderr.write(_summary(played, took, publisher.counters["packets_sent"], f"{(groups and group_map) or channel}"))


def _plays(recorded: str, chosen: "Chosen") -> "Iterator[Play]":
    from penstock.spark.journals import REMOTE, JournalPlace
    from penstock.spark.pipeline.archive.archive import MARK, Archive
    from penstock.spark.pipeline.recordings import plays_of_archive, plays_of_journal

    if not recorded.startswith(REMOTE) and (Path(recorded) / MARK).exists():
        return plays_of_archive(Archive.open(recorded), chosen)
    if not recorded.startswith(REMOTE) and not any(Path(recorded).glob("*.journal")):
        raise NotFoundError(
            f"holds neither an archive ({MARK}) nor a journal (*.journal)"
            if Path(recorded).exists()
            else "is not there",
            where=recorded,
            hint="name the directory of penstock pipeline run --archive or of penstock capture, or tcp://HOST:PORT of "
            "penstock journal serve",
        )
    return plays_of_journal(JournalPlace(recorded), chosen)


def _summary(played: "Played", took: float, packets: int, where: str) -> str:
    if not played.messages:
        return "nothing was recorded in this time\n"
    span = f"{_time_text(played.first_time_ns)} to {_time_text(played.last_time_ns)}"
    late = f"; at most {played.late_ns_max / 1e6:,.1f} ms late" if played.late_ns_max else ""
    return f"{played.messages:,} messages of {span} replayed on {where} in {packets:,} packets, {took:.1f} s{late}\n"


def _time_ns(text: str, otherwise: int, option: str) -> int:
    if not text:
        return otherwise
    if text.isascii() and text.isdigit() and len(text) == 19:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option} {text!r} is not a time", hint="write 2024-01-02T14:30:00, or nanoseconds since 1970"
        ) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = aware - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * NS_PER_SECOND + since.microseconds * 1_000


def _time_text(time_ns: int) -> str:
    seconds, rest_ns = divmod(time_ns, NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 1_000_000:03}"


def _speed(text: str) -> float:
    if text == "max":
        return 0.0
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor <= SPEED_MAX:
        raise ConfigurationError(f"--speed {text!r} is not a speed", hint="write 1, 10, 0.5, … or max")
    return factor
