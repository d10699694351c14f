"""`penstock convert`: check converter tables, and try them on a file."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.counters import Cause
from penstock.base.extensions import load_modules
from penstock.cli.common.file_options import FormatOption
from penstock.cli.common.table_options import (
    CalendarOption,
    DecimalsOption,
    ModulesOption,
    PrefixOption,
    VenueOption,
)
from penstock.convert import Converted, Converter, ConverterTable
from penstock.convert.core.document import chosen_table
from penstock.convert.core.explain import explain
from penstock.feed.core.session_dates import SessionDates
from penstock.feed.recorded.conversion import RecordedConversion
from penstock.feed.recorded.dates import replay_date
from penstock.feed.recorded.files import open_source
from penstock.model import KnownInstruments, MessageModel

app = typer.Typer(help="Check converter tables, and try them on a file.", no_args_is_help=True)

TableArgument = Annotated[
    str, typer.Argument(help="A shipped table (itch, iex-deep, …) or the path of a TOML document.")
]


@app.command()
def check(
    table: TableArgument,
    venue: VenueOption = "",
    prefix: PrefixOption = "",
    quantity_decimals: DecimalsOption = None,
    calendar: CalendarOption = "",
    module: ModulesOption = None,
) -> None:
    """Show how a table converts each source message, or where the table is wrong."""
    load_modules(module or ())
    for line in explain(ConverterTable.find(chosen_table(table, venue, prefix, quantity_decimals, calendar))):
        typer.echo(line)


@app.command()
def run(
    table: TableArgument,
    file: Annotated[
        Path, typer.Argument(help="A file of messages, a capture of a network, or text; it may be compressed.")
    ],
    trading_date: Annotated[
        datetime | None,
        typer.Option(
            "--date",
            "--trading-date",
            formats=["%Y-%m-%d"],
            help="The trading date, for feeds that send only times of day. Default: the date in the file's name.",
        ),
    ] = None,
    venue: VenueOption = "",
    prefix: PrefixOption = "",
    quantity_decimals: DecimalsOption = None,
    calendar: CalendarOption = "",
    module: ModulesOption = None,
    file_format: FormatOption = None,
) -> None:
    """Convert the messages of a file and print the results, one JSON object per line.

    The exit status is 1 if the file is damaged, or if none of its messages could be converted.
    """
    load_modules(module or ())
    day = trading_date.date() if trading_date is not None else None
    found = ConverterTable.find(chosen_table(table, venue, prefix, quantity_decimals, calendar))
    plan = found.compile()
    converter = Converter(plan, 1)
    recorded: RecordedConversion | None = None
    models = {output.model.id: output.model for output in plan.outputs}
    known = KnownInstruments()
    with open_source(file, file_format=file_format) as source:
        for event in source:
            if recorded is None:  # a file without a session needs no date
                recorded = RecordedConversion(converter, SessionDates.of_plan(plan, replay_date(file, plan, day)))
            for batch in recorded.take(event):
                print_messages(converter.convert(batch), models, known)
    for damage in source.damages:
        typer.echo(str(damage), err=True)
    for name, cause, count in sorted(converter.counters):
        if name in ("source_messages_malformed", "source_messages_unmatched"):
            typer.echo(f"{name} {cause}: {count}", err=True)
    taken = sum(converter.counters.by_cause("source_messages").values())
    malformed = converter.counters.by_cause("source_messages_malformed")
    if Cause.NUMBER in malformed and found.document.quantity_decimals == 0:
        typer.echo("quantities are whole numbers in this table; --quantity-decimals 8 converts fractions", err=True)
    converted = taken - sum(count for cause, count in malformed.items() if cause != Cause.KIND)
    if not converted:
        what = f"all {sum(malformed.values()):,} messages are malformed" if malformed else "the file has no messages"
        typer.echo(f"nothing was converted: {what}", err=True)
    if source.damages.total or not converted:
        raise typer.Exit(1)


def print_messages(converted: Converted, models: dict[int, MessageModel], known: KnownInstruments) -> None:
    for topic, origin, model_id, record in converted:
        head = {"topic": topic, "seq": origin.message_sequence, "source_seq": origin.source_sequence}
        if model_id in models:
            message = models[model_id].view(record)
            content = message.to_json(known.of(message))
        else:
            content = json.dumps(record.hex())
        typer.echo(json.dumps(head)[:-1] + f', "message": {content}}}')
