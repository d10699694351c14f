"""`penstock queue`: the queues (endpoints) of a message router."""

import itertools
import sys
from typing import Annotated

import msgspec
import typer

from penstock.assured.client import Assured, Delivery
from penstock.assured.config import EndpointConfig, Treatment, Want, WhenFull
from penstock.assured.wire.control import EndpointInfo
from penstock.base.errors import NotFoundError
from penstock.base.readable import harmless_json, printable
from penstock.base.words import counted
from penstock.cli.common.routers import ConnectOption, CredentialsOption, RouterArgument, opened
from penstock.cli.common.secrets import SecretOption
from penstock.cli.common.times import parse_time

WAIT_SECONDS = 0.5
"""Silence after which a queue counts as drained."""

BATCH = 256
PORTION = 4_096

app = typer.Typer(
    help="The queues of a message router: list, show, create, delete, publish, drain.", no_args_is_help=True
)

NameArgument = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")]


@app.command("list")
def list_queues(
    router: RouterArgument,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per queue.")] = False,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """List a router's queues, and how full they are."""
    with opened(router, connect, credentials, secret, role="operator") as assured:
        found = assured.endpoints()
        _say_standby(router, assured)
    for each in found:
        typer.echo(_encoded(each) if json else printable(_line(each)))


@app.command("show")
def show(
    router: RouterArgument,
    name: NameArgument,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Print everything about one queue as JSON."""
    with opened(router, connect, credentials, secret, role="operator") as assured:
        found = assured.endpoints(name)
        _say_standby(router, assured)
    if not found:
        raise NotFoundError(f"unknown queue {name!r}", where=router)
    typer.echo(_encoded(found[0]))


@app.command("create")
def create(
    router: RouterArgument,
    name: NameArgument,
    topics: Annotated[
        list[str] | None,
        typer.Argument(help="Interests that fill the queue. Default: none."),
    ] = None,
    where: Annotated[str, typer.Option(help="A SQL condition on the fields.")] = "",
    exclusive: Annotated[bool, typer.Option("--exclusive", help="One consumer at a time; the others wait.")] = False,
    messages_max: Annotated[int, typer.Option(help="Maximum number of messages.")] = 1_000_000,
    bytes_max: Annotated[int, typer.Option(help="Maximum size in bytes.")] = 2**30,
    age_ms_max: Annotated[int, typer.Option(help="Maximum age of messages; 0: unlimited.")] = 0,
    when_full: Annotated[
        WhenFull, typer.Option(help="Handling of messages for a full queue: refused, or moved to --dead-to.")
    ] = "refuse",
    deliveries_max: Annotated[int, typer.Option(help="Maximum number of deliveries of a message; 0: unlimited.")] = 0,
    dead_to: Annotated[str, typer.Option(help="The dead-letter queue; empty: messages are discarded.")] = "dead",
    replication: Annotated[
        Treatment, typer.Option(help="The replication of its messages in a pair of routers.")
    ] = "none",
    from_id: Annotated[int, typer.Option(help="Begin with this message id, if the log still has it.")] = 0,
    from_time: Annotated[
        str, typer.Option(help="Begin with messages of this time: ISO 8601 (default UTC) or nanoseconds.")
    ] = "",
    alter: Annotated[bool, typer.Option("--alter", help="Change an existing queue.")] = False,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Create a queue, or change one with --alter. Creating an identical queue again is not an error."""
    endpoint = EndpointConfig(
        name=name,
        wants=(Want(topics=tuple(topics), where=where),) if topics else (),
        consumers="exclusive" if exclusive else "shared",
        messages_max=messages_max,
        bytes_max=bytes_max,
        age_ms_max=age_ms_max,
        when_full=when_full,
        deliveries_max=deliveries_max,
        dead_to=dead_to,
        replication=replication,
    )
    from_time_ns = parse_time(from_time, "--from-time") if from_time else 0
    with opened(router, connect, credentials, secret, role="operator") as assured:
        if alter:
            assured.alter_endpoint(endpoint)
        else:
            assured.create_endpoint(endpoint, from_id=from_id, from_time_ns=from_time_ns)
    typer.echo(f"{name}: {'changed' if alter else 'created'}")


@app.command("delete")
def delete(
    router: RouterArgument,
    name: NameArgument,
    force: Annotated[bool, typer.Option("--force", help="Delete the queue even if it has consumers.")] = False,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Delete a queue and its messages."""
    with opened(router, connect, credentials, secret, role="operator") as assured:
        assured.delete_endpoint(name, force=force)
    typer.echo(f"{name}: deleted")


@app.command("publish")
def publish(
    router: RouterArgument,
    topic: Annotated[str, typer.Argument(help="Its topic.")],
    text: Annotated[list[str] | None, typer.Argument(help="Payloads; none: the lines of standard input.")] = None,
    ttl_ms: Annotated[int, typer.Option(help="Time to live of the messages; 0: unlimited.")] = 0,
    priority: Annotated[int, typer.Option(help="0 to 9; 9 goes first.")] = 4,
    replication: Annotated[
        Treatment, typer.Option(help="The replication of the messages in a pair of routers, if publishers decide.")
    ] = "none",
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Publish messages; returns when all of them are stored. The exit status is 1 if no queue matched some of them."""
    lines = (line.rstrip("\n") for line in sys.stdin) if not text else iter(text)
    stored = unmatched = 0
    with (
        opened(router, connect, credentials, secret, send=(topic,)) as assured,
        assured.publisher(window=4_096) as publisher,
    ):
        publisher.warns = False  # reported below
        while portion := list(itertools.islice(lines, PORTION)):
            numbers = [
                publisher.send(topic, line.encode(), ttl_ms=ttl_ms, priority=priority, replication=replication)
                for line in portion
            ]
            publisher.flush()
            discarded = sum(publisher.outcome(number) == "unmatched" for number in numbers)
            stored, unmatched = stored + len(numbers) - discarded, unmatched + discarded
    if stored or not unmatched:
        sys.stderr.write(f"{counted(stored, 'message')} stored\n")
    if unmatched:
        sys.stderr.write(
            f"{counted(unmatched, 'message')} not queued: no queue has an interest in {printable(topic)}\n"
        )
        raise typer.Exit(1)


@app.command("drain")
def drain(
    router: RouterArgument,
    name: NameArgument,
    count: Annotated[int | None, typer.Option(help="Maximum number of messages.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print the messages.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Browse: return the messages to the queue.")] = False,
    connect: ConnectOption = None,
    credentials: CredentialsOption = None,
    secret: SecretOption = None,
) -> None:
    """Consume the messages of a queue, printed as lines of JSON, until no more arrive."""
    taken = 0
    with (
        opened(router, connect, credentials, secret, receive=(">",)) as assured,
        assured.endpoint(name, prefetch=BATCH if count is None else min(BATCH, count)) as queue,
    ):
        while taken != count:
            messages = queue.take(BATCH if count is None else min(BATCH, count - taken), WAIT_SECONDS)
            if not messages:
                break
            taken += len(messages)
            if not quiet:
                for each in messages:
                    typer.echo(harmless_json(_told(each)))
            if keep:
                queue.close(as_unread=True)
                break
            queue.ack(messages)
    sys.stderr.write(f"{counted(taken, 'message')}{' browsed' if keep else ''}\n")


def _told(message: Delivery) -> str:
    told = {
        "id": message.id,
        "topic": message.topic,
        "payload": message.payload.decode(errors="replace"),
        "priority": message.priority,
        "is_redelivered": message.is_redelivered,
        "deliveries": message.deliveries,
        "published_ns": message.published_ns,
    }
    if message.dead_reason:
        told |= {"dead_reason": message.dead_reason, "dead_from": message.dead_from}
    return msgspec.json.encode(told).decode()


def _say_standby(router: str, assured: Assured) -> None:
    if assured.is_standing_by:
        sys.stderr.write(f"{printable(router)} is the standby: these are its copies\n")


def _encoded(info: EndpointInfo) -> str:
    return harmless_json(msgspec.json.encode(info).decode())


def _line(info: EndpointInfo) -> str:
    topics = ", ".join(topic for want in info.endpoint.wants for topic in want.topics)
    size = f"{counted(info.messages, 'message')}, {counted(info.bytes, 'byte')}"
    queued = f"{size}, {info.unsettled:,} unsettled, {counted(info.flows, 'consumer')}"
    return f"{info.endpoint.name}: {queued}; {topics or 'no topics'}"
