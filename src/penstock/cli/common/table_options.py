"""Options of every command that takes a converter table or a custom feed."""

from typing import Annotated

import typer

ModulesOption = Annotated[
    list[str] | None,
    typer.Option("--module", help="A Python file or module with a feed of your own; may be repeated."),
]
DecimalsOption = Annotated[
    int | None,
    typer.Option("--quantity-decimals", help="8 if the venue trades fractions, else 0. Default: the table's value."),
]
VENUE_HELP = "The venue of the messages, in place of the table's own: XBOS."
PREFIX_HELP = "The first levels of all topics, in place of the table's own: md.us.bx."

CALENDAR_HELP = "The trading calendar, in place of the venue's: a shipped one (us-equities), or a TOML file."

VenueOption = Annotated[str, typer.Option(help=VENUE_HELP)]
PrefixOption = Annotated[str, typer.Option(help=PREFIX_HELP)]
CalendarOption = Annotated[str, typer.Option(help=CALENDAR_HELP)]
