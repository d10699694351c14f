"""`penstock model`: look at message models, and check them before they go into use."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from penstock.base.errors import ModelError, PenstockError
from penstock.model import Field, MessageModel, shipped, shipped_names

app = typer.Typer(help="Show and check message models.", no_args_is_help=True)

NameOrPath = Annotated[str, typer.Argument(help="A shipped model (quote, trade, …) or the path of a TOML document.")]


class Form(StrEnum):
    TABLE = "table"
    ARROW = "arrow"
    SPARK = "spark"
    JSON = "json"
    NUMPY = "numpy"


@app.command()
def show(
    model: NameOrPath,
    form: Annotated[Form, typer.Option("--as", help="What to show it as.")] = Form.TABLE,
) -> None:
    """Show a model: where its fields lie, or its schema in another system's words."""
    with _clear_errors():
        loaded = _model(model)
        if form is Form.TABLE:
            _show_table(loaded)
        else:
            typer.echo(_text(loaded, form))


@app.command()
def check(
    path: Annotated[Path, typer.Argument(help="The TOML document.")],
    against: Annotated[
        str | None,
        typer.Option(help="The version in use (a path or a shipped model) whose readers must go on reading."),
    ] = None,
) -> None:
    """Check a model document; with --against, also that it only adds to an older version."""
    with _clear_errors():
        model = MessageModel.load(path)
        older = _model(against) if against is not None else None
        reasons = model.incompatibilities(older) if older is not None else []
        if older is not None and reasons:
            raise ModelError(
                f"{model.name} version {model.version} breaks readers of version {older.version}: {'; '.join(reasons)}",
                where=str(path),
            )
        readable = f", readable by version {older.version}" if older is not None else ""
        typer.echo(
            f"{model.name} version {model.version}: {len(model.fields)} fields, {model.record_size} bytes{readable}"
        )


def _model(name_or_path: str) -> MessageModel:
    if name_or_path in shipped_names():
        return shipped(name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml" and not path.exists():
        raise ModelError(
            f"no model {name_or_path!r}", hint=f"name a TOML document or one of: {', '.join(shipped_names())}"
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
        for field in model.fields:
            if field.part == part.name:
                place = str(field.offset), str(field.size)
                table.add_row(*place, field.name, field.type_text, _notes(field), field.description)
    Console().print(table)


def _notes(field: Field) -> str:
    notes = ["optional"] if field.optional else []
    if field.since > 1:
        notes.append(f"since {field.since}")
    if field.conflate != "last":
        notes.append(f"conflate {field.conflate}")
    return ", ".join(notes)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """What Penstock raises on purpose is one red line and exit status 1, not a traceback."""
    try:
        yield
    except PenstockError as error:
        Console(stderr=True).print(str(error), style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1) from None
