"""`penstock pub`: lines of standard input, or made-up quotes, onto a channel."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Protocol

import msgspec
import typer

from penstock.base.errors import ConfigurationError, ModelError, PenstockError
from penstock.base.limits import MESSAGE_SIZE_MAX
from penstock.cli.common.channel import CHANNEL, INTERFACE, ChannelArgument, InterfaceOption, MapOption
from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.cli.model import find_model
from penstock.cli.pub.lines import numbered_lines
from penstock.cli.pub.publisher import publishing
from penstock.cli.pub.tree import TreeOutput, opened_publisher
from penstock.demo.generator import TickGenerator
from penstock.demo.schedule import Schedule
from penstock.middleware import OutgoingBatch
from penstock.model import Message, MessageModel
from penstock.net.udp import Channel
from penstock.topics import GroupMap

BATCH_MAX = 512
GENERATE_RATE = 1_000.0


def pub(
    channel: ChannelArgument = CHANNEL,
    interface: InterfaceOption = INTERFACE,
    group_map: MapOption = None,
    topic: Annotated[str, typer.Option(help='The topic; a line\'s "topic" key comes first.')] = "",
    model: Annotated[str, typer.Option(help="The model of the lines: shipped, or the path of a document.")] = "quote",
    raw: Annotated[bool, typer.Option("--raw", help="Publish each line as it is, without a model.")] = False,
    generate: Annotated[
        int, typer.Option(min=0, metavar="N", help="Publish N made-up quotes instead of reading lines.")
    ] = 0,
    rate: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            max=50_000_000,
            help="Messages per second; unless given: --generate 1,000, lines at once.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of --generate: another seed, other quotes.")] = 1,
    symbols: Annotated[int, typer.Option(min=1, max=100_000, help="Of --generate: how many instruments.")] = 500,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Go on after a bad line, instead of stopping.")] = False,
    filter_place: Annotated[
        str,
        typer.Option(
            "--filter",
            metavar="HOST:PORT",
            help="Give packets to this host's filter module by shared memory, too; auto: if there is one; none.",
        ),
    ] = "none",
    publisher_id: Annotated[int | None, typer.Option("--id", min=1, help="The publisher's id; with --epochs.")] = None,
    epochs: Annotated[Path | None, typer.Option(help="The file that keeps the epochs of --id.")] = None,
    connect: Annotated[
        str | None, typer.Option(metavar="URL", help="Get the id from the administration server; with --name.")
    ] = None,
    credentials: Annotated[Path | None, typer.Option(help="Of --connect: the file that says who you are.")] = None,
    name: Annotated[str | None, typer.Option(help="Of --connect and --agent: the name that has the id.")] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="On a tree, at its root; repeated: its standby. Not on a channel."),
    ] = None,
    tree: Annotated[str, typer.Option(help="Of --agent: the tree's name.")] = "tree",
) -> None:
    """Publish what is read from standard input: a JSON object per line with a message's fields, or with --raw any text.

    When the input ends, and on Ctrl-C, it says goodbye and answers repair requests for a while before it ends.
    """
    if raw and not topic:
        raise ConfigurationError("--raw needs a topic", hint="add --topic some.topic")
    messages = _Lines("" if raw else model, topic)
    if agent:
        with ExitStack() as stack:
            interrupt = stack.enter_context(interruptible())
            output = TreeOutput(opened_publisher(stack, tuple(agent), tree, connect, credentials, name))
            stack.callback(output.conclude)
            if generate:
                return _publish_quotes(output, TickGenerator(seed, symbols), generate, rate or GENERATE_RATE, interrupt)
            return _publish_lines(output, messages, rate, skip_bad, interrupt)
    trouble: PenstockError | None = None
    groups = GroupMap.load(group_map) if group_map is not None else None
    where = channel if groups is None else f"{len(groups.groups):,} groups of {group_map}"
    chosen = Channel.parse(channel, interface=interface)
    publishing_here = publishing(
        chosen,
        groups,
        filter_place,
        publisher_id=publisher_id,
        epochs=epochs,
        connect=connect,
        credentials=credentials,
        name=name,
    )
    with interruptible() as interrupt, publishing_here as publisher:
        try:
            if generate:
                _publish_quotes(publisher, TickGenerator(seed, symbols), generate, rate or GENERATE_RATE, interrupt)
            else:
                _publish_lines(publisher, messages, rate, skip_bad, interrupt)
        except PenstockError as error:
            trouble = error  # what was published before is repaired all the same
    counters = publisher.counters
    sys.stderr.write(
        f"{counters['messages_published']:,} messages published on {where} in {counters['packets_sent']:,} packets; "
        f"{counters['repairs_sent']:,} packets sent again; {messages.skipped:,} bad lines skipped\n"
    )
    if trouble is not None:
        raise trouble


class Output(Protocol):
    """Where messages go."""

    def publish(self, topic: str, payload: bytes | Message) -> object: ...

    def publish_batch(self, batch: OutgoingBatch) -> object: ...


class _Lines:
    """What lines are turned into; `model` is empty when they are published as they are."""

    def __init__(self, model: str, topic: str) -> None:
        self._model: MessageModel | None = find_model(model) if model else None
        self._topic = topic
        self.skipped = 0

    def publish(self, line: bytes, publisher: Output) -> None:
        if self._model is None:
            publisher.publish(self._topic, line)
            return
        try:
            fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            topic = msgspec.json.decode(fields.pop("topic"), type=str) if "topic" in fields else self._topic
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise ModelError(f"is not a JSON object of fields: {error}") from None
        if not topic:
            raise ConfigurationError("has no topic", hint='give --topic, or a "topic" key in every line')
        publisher.publish(topic, self._model.from_json(msgspec.json.encode(fields)))


def _publish_lines(
    publisher: Output, messages: _Lines, rate: float | None, skip_bad: bool, interrupt: Interrupt
) -> None:
    if sys.stdin is None:
        raise ConfigurationError("there is no standard input to read", hint="pipe lines in, or use --generate")
    wait = _pacing(Schedule(rate), interrupt) if rate is not None else None
    for number, line in numbered_lines(sys.stdin.fileno(), MESSAGE_SIZE_MAX, lambda: interrupt.is_wanted):
        if not line.strip():
            continue
        if wait is not None:
            wait()
        try:
            messages.publish(line, publisher)
        except PenstockError as error:
            error.where = f"line {number}: {error.where}" if error.where else f"line {number}"
            if not skip_bad:
                raise
            messages.skipped += 1
            sys.stderr.write(f"skipped {error}\n")


def _pacing(schedule: Schedule, interrupt: Interrupt) -> Callable[[], None]:
    def wait() -> None:
        while not interrupt.is_wanted and not len(schedule.due(1)):
            time.sleep(schedule.seconds_to_next())

    return wait


def _publish_quotes(publisher: Output, generator: TickGenerator, count: int, rate: float, interrupt: Interrupt) -> None:
    schedule = Schedule(rate, count)
    while not schedule.is_over and not interrupt.is_wanted:
        times_ns = schedule.due(BATCH_MAX)
        if len(times_ns):
            publisher.publish_batch(generator.take(times_ns))
        else:
            time.sleep(schedule.seconds_to_next())
