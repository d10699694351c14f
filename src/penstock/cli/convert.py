"""`penstock convert`: look at converter tables, and try them on a file."""

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from penstock.base.errors import TableError
from penstock.convert import Converted, Converter, ConverterTable, SourceBatch, shipped_tables
from penstock.convert.explain import explain
from penstock.model import MessageModel

app = typer.Typer(help="Check converter tables, and try them on a file.", no_args_is_help=True)

TableArgument = Annotated[
    str, typer.Argument(help="A shipped table (itch, iex-deep, …) or the path of a TOML document.")
]

BATCH = 4_096
"""Source messages converted at once."""


@app.command()
def check(table: TableArgument) -> None:
    """Say what a table does with each source message, or where it is wrong."""
    for line in explain(find_table(table)):
        typer.echo(line)


@app.command()
def run(
    table: TableArgument,
    file: Annotated[Path, typer.Argument(help="Source messages: lines, or each with two bytes of length before it.")],
    trading_date: Annotated[
        datetime | None, typer.Option(formats=["%Y-%m-%d"], help="The day, for feeds that send only times of day.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Source messages to convert at most.")] = 1_000_000_000,
) -> None:
    """Convert the messages of a file and print what comes out, one JSON object per line."""
    plan_table = find_table(table)
    day = trading_date.date() if trading_date is not None else None
    converter = Converter(plan_table.compile(), 1, trading_date=day)
    models = {output.model.id: output.model for output in converter.plan.outputs}
    messages = read_messages(file, plan_table.format.layout)[:limit]
    for start in range(0, len(messages), BATCH):
        batch = SourceBatch.from_messages(messages[start : start + BATCH], start + 1)
        print_messages(converter.convert(batch), models)
    for name, cause, count in sorted(converter.counters):
        if name in ("source_messages_malformed", "source_messages_unmatched"):
            typer.echo(f"{name} {cause}: {count}", err=True)


def find_table(name: str) -> ConverterTable:
    """A shipped table by its name, else the file of that path."""
    if name in shipped_tables() or not (name.endswith(".toml") or Path(name).exists()):
        return ConverterTable.load(name)
    return ConverterTable.read(Path(name))


def read_messages(file: Path, layout: str) -> list[bytes]:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise TableError(f"cannot be read: {error.strerror}", where=str(file)) from None
    if layout == "csv":
        return data.splitlines()
    messages = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 2], "big")
        if at + 2 + size > len(data):
            raise TableError(f"ends within a message at byte {at}", where=str(file))
        messages.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return messages


def print_messages(converted: Converted, models: dict[int, MessageModel]) -> None:
    for topic, origin, model_id, record in converted:
        head = {"topic": topic, "seq": origin.message_sequence, "source_seq": origin.source_sequence}
        content = models[model_id].view(record).to_json() if model_id in models else json.dumps(record.hex())
        typer.echo(json.dumps(head)[:-1] + f', "message": {content}}}')
