"""`penstock model`: show message models, and check new ones."""

import difflib
import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.base.errors import ModelError
from penstock.model import Field, MessageModel, Part, shipped, shipped_names
from penstock.model.stubs import module_of

app = typer.Typer(help="Show and check message models.", no_args_is_help=True)

OWN_ID_MIN = 100
"""Ids below are reserved for shipped models."""

NameOrPath = Annotated[str, typer.Argument(help="A shipped model (quote, trade, …) or the path of a TOML document.")]


class Form(StrEnum):
    TABLE = "table"
    ARROW = "arrow"
    SPARK = "spark"
    JSON = "json"
    NUMPY = "numpy"


def _form(text: str) -> str:
    if text not in list(Form):
        raise typer.BadParameter(f"{text!r} must be one of: {', '.join(Form)}")
    return text


@app.command()
def show(
    model: NameOrPath,
    form: Annotated[
        str, typer.Option("--as", metavar="|".join(Form), callback=_form, help="What to show it as.")
    ] = Form.TABLE,
) -> None:
    """Show a model: the layout of its fields, or its schema in another format."""
    loaded = find_model(model)
    if form == Form.TABLE:
        _show_table(loaded)
    else:
        typer.echo(_text(loaded, Form(form)))


@app.command()
def check(
    model: NameOrPath,
    against: Annotated[
        str | None,
        typer.Option(help="The version in use (a path or a shipped model) whose readers must remain compatible."),
    ] = None,
) -> None:
    """Check a model document; with --against, also check that it only adds to an older version."""
    loaded = find_model(model)
    older = find_model(against) if against is not None else None
    reasons = loaded.incompatibilities(older) if older is not None else []
    if older is not None and reasons:
        raise ModelError(
            f"{loaded.name} version {loaded.version} breaks readers of version {older.version}: {'; '.join(reasons)}",
            where=model,
        )
    readable = f", readable by version {older.version}" if older is not None else ""
    typer.echo(
        f"{loaded.name} version {loaded.version}: {len(loaded.fields)} fields, {loaded.record_size} bytes{readable}"
    )
    for taken in map(shipped, shipped_names()):
        if taken.id == loaded.id and taken.name != loaded.name:
            typer.echo(
                f"warning: id {taken.id} is that of the shipped model {taken.name!r}; yours start at {OWN_ID_MIN}"
            )


@app.command()
def stubs(
    models: Annotated[
        list[str],
        typer.Argument(help="Shipped models (quote, …) or paths of TOML documents.", metavar="MODEL..."),
    ],
) -> None:
    """Write a Python module with a class for each model, for editors and type checkers, to standard output."""
    typer.echo(module_of([find_model(each) for each in models]), nl=False)


def find_model(name_or_path: str) -> MessageModel:
    """Return a shipped model by its name, or any model by the path of its document."""
    if name_or_path in shipped_names():
        return shipped(name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.exists():
        near = difflib.get_close_matches(name_or_path, shipped_names(), n=1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ModelError(
            f"unknown model {name_or_path!r}",
            hint=f"{meant}name the path of a TOML document, or one of: {', '.join(shipped_names())}",
        )
    return MessageModel.load(path)


def _text(model: MessageModel, form: Form) -> str:
    if form is Form.ARROW:
        return str(model.arrow_schema().to_string(show_schema_metadata=False))
    if form is Form.SPARK:
        return model.spark_schema()
    if form is Form.NUMPY:
        return repr(model.dtype)
    layout = {
        "id": model.id,
        "name": model.name,
        "version": model.version,
        "description": model.description,
        "conflate": model.conflate,
        "record_size": model.record_size,
        "parts": msgspec.to_builtins(model.parts),
        "fields": msgspec.to_builtins(model.fields),
    }
    return json.dumps(layout, indent=2, ensure_ascii=False)


def _show_table(model: MessageModel) -> None:
    conflation = "" if model.conflate else ", never conflated"
    table = Table(
        title=f"{model.name} (id {model.id}, version {model.version}, {model.record_size} bytes{conflation})",
        caption=model.description,
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("offset", "size"):
        table.add_column(heading, justify="right")
    for heading in ("field", "type"):
        table.add_column(heading, no_wrap=True)
    table.add_column("notes")
    table.add_column("meaning")
    for part in model.parts:
        if len(model.parts) > 1:
            table.add_section()
            table.add_row(str(part.offset), str(part.size), f"[bold]{part.name}[/bold]", "part", style="cyan")
        for row in _rows(model, part):
            if isinstance(row, Field):
                place = str(row.offset), str(row.size)
                table.add_row(*place, row.name, row.type_text, _notes(row), row.description)
            else:
                offset, size, what = row
                table.add_row(str(offset), str(size), "", what, style="dim")
    Console().print(table)


def _rows(model: MessageModel, part: Part) -> Iterator[Field | tuple[int, int, str]]:
    """Return the fields of a part and the padding between and after them, so that every byte is in one row."""
    at = part.offset
    for field in model.fields:
        if field.part == part.name:
            if field.offset > at:
                yield at, field.offset - at, "padding"
            yield field
            at = field.end
    if at % 8:
        yield at, -at % 8, "padding"
        at += -at % 8
    if at < part.offset + part.size:
        yield at, part.offset + part.size - at, "reserved"


def _notes(field: Field) -> str:
    notes = ["optional"] if field.optional else []
    if field.since > 1:
        notes.append(f"since {field.since}")
    if field.conflate != "last":
        notes.append(f"conflate {field.conflate}")
    notes += [f"{name} = {number}" for name, number in field.values.items()]
    notes += [f"bit {number} {name}" for name, number in field.bits.items()]
    return ", ".join(notes)
