"""Options of every command that reads a recorded feed."""

from typing import Annotated

import typer

from penstock.feed.lines.sources import FileFormat

FormatOption = Annotated[
    FileFormat | None,
    typer.Option("--format", help="What the file is; seen from its content unless told."),
]
