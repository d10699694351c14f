"""Options of every command that takes a converter table."""

from typing import Annotated

import typer

VenueOption = Annotated[str, typer.Option(help="The venue of the messages, in place of the table's own: XBOS.")]
PrefixOption = Annotated[
    str, typer.Option(help="The first levels of all topics, in place of the table's own: md.us.bx.")
]
