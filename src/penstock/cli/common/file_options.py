"""Options of every command that reads a recorded feed."""

from typing import Annotated

import typer

from penstock.feed.recorded.files import FileFormat

FormatOption = Annotated[
    FileFormat | None,
    typer.Option("--format", help="The file format; detected from the content by default."),
]
