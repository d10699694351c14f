"""How objects show themselves: a line, a table in a terminal (rich), and a table in a notebook (HTML).

Values come from the network. Each is cut to CELL_MAX characters, loses its control characters, and is never markup.
"""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

ROWS_MAX = 20
COLUMNS_MAX = 12
CELL_MAX = 60


class Display(NamedTuple):
    """The contents of a table; `more` rows are left out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    more: int = 0


class Displayed:
    """An object that shows itself as a title and a table."""

    def _title(self) -> str:
        raise NotImplementedError

    def _display(self) -> Display:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{cell(self._title())}>"

    def __rich__(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        columns, rows, more = _bounded(self._display())
        caption = Text(_left_out(more)) if more else None
        table = Table(title=Text(cell(self._title())), caption=caption, title_justify="left", caption_justify="left")
        for name in columns:
            table.add_column(Text(name))
        for row in rows:
            table.add_row(*map(Text, row))
        return table

    def _repr_html_(self) -> str:
        columns, rows, more = _bounded(self._display())
        head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in row)}</tr>" for row in rows)
        foot = f"<p>{html.escape(_left_out(more))}</p>" if more else ""
        title = html.escape(cell(self._title()))
        return f"<table><caption>{title}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{foot}"


def cell(value: object) -> str:
    """Return the value as one line of printable text of bounded length."""
    text = "" if value is None else str(value)
    if len(text) > CELL_MAX:
        text = f"{text[: CELL_MAX - 1]}…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)


def _bounded(display: Display) -> tuple[list[str], list[list[str]], int]:
    more = display.more + max(len(display.rows) - ROWS_MAX, 0)
    rows = [[cell(value) for value in row[:COLUMNS_MAX]] for row in display.rows[:ROWS_MAX]]
    return [cell(name) for name in display.columns[:COLUMNS_MAX]], rows, more


def _left_out(more: int) -> str:
    return f"… {more:,} more"
