"""`penstock capture`: record a channel."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from penstock.base.errors import ConfigurationError, JournalError
from penstock.base.log import logger
from penstock.capture import Capture
from penstock.cli.common.channel import CHANNEL, INTERFACE, ChannelArgument, FromStartOption, InterfaceOption
from penstock.cli.common.interrupt import interruptible
from penstock.journal import JournalWriter
from penstock.middleware import ReceiverConfig
from penstock.middleware.live import MulticastReceiver
from penstock.net.udp import Channel
from penstock.security.live.authentication_watch import AuthenticationWatch
from penstock.security.live.client import AdminClient
from penstock.security.live.key_lease import ReceivingLease
from penstock.wire import Authenticator

log = logger("capture")

LOOK_SECONDS = 0.2


def capture(
    to: Annotated[Path, typer.Option(help="The directory of the journal; created if missing.")],
    channel: ChannelArgument = CHANNEL,
    interface: InterfaceOption = INTERFACE,
    seconds: Annotated[float, typer.Option(min=0.0, help="End after this time. Default: on Ctrl-C.")] = float("inf"),
    from_start: FromStartOption = False,
    connect: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Check the authentication of packets with the keys of this administration server."
        ),
    ] = None,
    credentials: Annotated[Path | None, typer.Option(help="Your credentials, for --connect.")] = None,
) -> None:
    """Record the messages and losses on a channel in a journal, in order.

    With --connect, packets without a valid authentication trailer are refused and counted. The role `filter` gives the
    keys of all feeds; other clients get those of publishers that belong to no feed. While no administration server
    answers for longer than the lease of the keys, all packets are refused.

    A summary of the records on the disk follows at the end. A disk that is full or fails ends the command with
    status 1.
    """
    if (connect is None) != (credentials is None):
        raise ConfigurationError("--connect and --credentials require each other")
    console = Console(stderr=True, highlight=False)
    config = ReceiverConfig(join="start" if from_start else "live")
    chosen = Channel.parse(channel, interface=interface)
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        authenticator: Authenticator | None = None
        if connect is not None and credentials is not None:
            lease = ReceivingLease(program="capture")
            authenticator = Authenticator(lease=lease.flag)
            client = AdminClient.connect(connect, credentials)
            stack.enter_context(AuthenticationWatch(client, authenticator.use, lease))
        receiver = stack.enter_context(MulticastReceiver([chosen], config=config, authenticator=authenticator))
        journal = JournalWriter.open(to)
        first = journal.next_sequence
        log.info("listening", channel=str(chosen))
        try:
            with journal, console.status("waiting for packets") as status:
                taken = Capture(receiver, journal)
                shown = 0.0
                while not interrupt.is_wanted and (left := deadline - (now := time.monotonic())) > 0:
                    taken.take(min(left, LOOK_SECONDS))
                    if now - shown >= LOOK_SECONDS:
                        shown = now
                        status.update(f"{taken.messages:,} messages in {taken.packets:,} packets")
        except JournalError as error:
            kept = journal.durable_sequence - first + 1
            error.hint = f"{kept:,} records of this run are on the disk; {error.hint}".rstrip("; ")
            raise
    last = journal.durable_sequence
    records = f"records {first} to {last}" if last >= first else "no records"
    sys.stderr.write(
        f"{taken.messages:,} messages in {taken.packets:,} packets captured into {to}, {records}; "
        f"{taken.packets_lost:,} packets lost, "
        f"{receiver.counters['repairs_received']:,} repaired{_refused(authenticator)}\n"
    )


def _refused(authenticator: Authenticator | None) -> str:
    """The part of the summary about packets without valid authentication."""
    if authenticator is None:
        return ""
    count = authenticator.unauthenticated + authenticator.unknown_key + authenticator.unvouched + authenticator.forged
    unleased = f"; {authenticator.lease_ended:,} without a lease" if authenticator.lease_ended else ""
    return f"; {count:,} not authentic{unleased}"
