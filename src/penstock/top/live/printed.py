"""Print a picture as plain tables, for `penstock top --once`."""

from rich.console import Console
from rich.table import Table

from penstock.top.core.picture import Picture
from penstock.top.core.shown import NODES, PADDING, VIEWS, fitting, reasons

WIDTH = 240
"""Width without a terminal."""


def print_picture(picture: Picture) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    for view in VIEWS:
        rows, _ = view.table(picture)
        if not rows:
            continue
        titles = [column.title for column in view.columns]
        count = fitting(titles, rows, console.width)
        table = Table(box=None, padding=(0, PADDING, 0, 0), title=view.name, title_justify="left")
        for title in titles[:count]:
            table.add_column(title, no_wrap=True)
        for cells in rows:
            table.add_row(*cells[:count])
        console.print(table)
        if view is NODES:
            for each in reasons(picture):
                console.print(each, markup=False)
