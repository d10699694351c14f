"""`penstock pub`: publish lines of standard input, or generated quotes."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.limits import MESSAGE_SIZE_MAX
from penstock.cli.common.interrupt import Interrupt, interruptible
from penstock.cli.common.options import takes_options
from penstock.cli.model import find_model
from penstock.cli.pub.lines import numbered_lines
from penstock.cli.pub.options import PubOptions
from penstock.cli.pub.publisher import publishing
from penstock.cli.pub.tree import TreeOutput, opened_publisher
from penstock.client.text_lines import LinePublisher, Output
from penstock.demo.generator import TickGenerator
from penstock.demo.schedule import Schedule
from penstock.net.udp import Channel
from penstock.topics import GroupMap

BATCH_MAX = 512
GENERATE_RATE = 1_000.0


@takes_options(PubOptions)
def pub(options: PubOptions) -> None:
    """Publish messages from standard input: one JSON object per line with a message's fields, or any text with --raw.

    At the end of the input, and on Ctrl-C, the publisher says goodbye and answers repair requests for a while.
    """
    if options.raw and not options.topic:
        raise ConfigurationError("--raw needs a topic", hint="add --topic some.topic")
    lines = LinePublisher(None if options.raw else find_model(options.model), options.topic)
    if options.agent:
        _publish_on_tree(options, tuple(options.agent), lines)
    else:
        _publish_on_channel(options, lines)


def _publish_on_tree(options: PubOptions, agents: tuple[str, ...], lines: LinePublisher) -> None:
    with ExitStack() as stack:
        interrupt = stack.enter_context(interruptible())
        publisher = opened_publisher(stack, agents, options.tree, options.connect, options.credentials, options.name)
        output = TreeOutput(publisher)
        stack.callback(output.conclude)
        _publish(options, output, lines, interrupt)


def _publish_on_channel(options: PubOptions, lines: LinePublisher) -> None:
    trouble: PenstockError | None = None
    groups = GroupMap.load(options.group_map) if options.group_map is not None else None
    where = options.channel if groups is None else f"{len(groups.groups):,} groups of {options.group_map}"
    publishing_here = publishing(
        Channel.parse(options.channel, interface=options.interface),
        groups,
        options.filter_place,
        publisher_id=options.publisher_id,
        epochs=options.epochs,
        connect=options.connect,
        credentials=options.credentials,
        name=options.name,
    )
    with interruptible() as interrupt, publishing_here as publisher:
        try:
            _publish(options, publisher, lines, interrupt)
        except PenstockError as error:
            trouble = error  # earlier messages are repaired all the same
    counters = publisher.counters
    sys.stderr.write(
        f"{counters['messages_published']:,} messages published on {where} in {counters['packets_sent']:,} packets; "
        f"{counters['repairs_sent']:,} packets sent again; {lines.skipped:,} bad lines skipped\n"
    )
    if trouble is not None:
        raise trouble


def _publish(options: PubOptions, publisher: Output, lines: LinePublisher, interrupt: Interrupt) -> None:
    if options.generate:
        generator = TickGenerator(options.seed, options.symbols)
        _publish_quotes(publisher, generator, options.generate, options.rate or GENERATE_RATE, interrupt)
    else:
        _publish_lines(publisher, lines, options.rate, options.skip_bad, interrupt)


def _publish_lines(
    publisher: Output, messages: LinePublisher, rate: float | None, skip_bad: bool, interrupt: Interrupt
) -> None:
    if sys.stdin is None:
        raise ConfigurationError("standard input is closed", hint="pipe lines in, or use --generate")
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
