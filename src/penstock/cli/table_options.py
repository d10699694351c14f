"""Options of every command that takes a converter table or a feed of one's own."""

from typing import Annotated

import typer

ModulesOption = Annotated[
    list[str] | None,
    typer.Option("--module", help="A Python file or module with a feed of your own; may be repeated."),
]
VENUE_HELP = "The venue of the messages, in place of the table's own: XBOS."
PREFIX_HELP = "The first levels of all topics, in place of the table's own: md.us.bx."

VenueOption = Annotated[str, typer.Option(help=VENUE_HELP)]
PrefixOption = Annotated[str, typer.Option(help=PREFIX_HELP)]
