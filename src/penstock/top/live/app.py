"""`penstock top` on a terminal: one view at a time, redrawn after every poll."""

import time
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Input, Static

from penstock.base.clock import NS_PER_SECOND
from penstock.top.core.picture import Picture
from penstock.top.core.places import Place
from penstock.top.core.shown import NODES, VIEWS, View, duration, fitting, reasons
from penstock.top.core.watch import Watch
from penstock.top.live.fetching import fetch_all

ROWS_MAX = 500
"""Maximum number of rows drawn; the heading gives the total, and a filter finds other rows."""

HEADING_SECONDS = 0.5
SCROLLBAR_WIDTH = 2


class TopApp(App[None]):
    """Watches the nodes that `find` returns until the user quits."""

    TITLE = "penstock top"
    CSS = """
    #heading { padding: 0 1; color: $text-muted; }
    #reasons { display: none; height: auto; max-height: 8; padding: 0 1; color: $text-warning; }
    #table { height: 1fr; }
    #filter { display: none; height: 3; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view({number - 1})", view.name) for number, view in enumerate(VIEWS, start=1)),
        Binding("tab", "next_view", "next view", priority=True, show=False),
        Binding("s", "sort", "sort"),
        Binding("r", "reverse", "reverse"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("escape", "all", "all", show=False),
        Binding("p", "pause", "pause"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, title: str, find: Callable[[], list[Place]], interval_s: float) -> None:
        super().__init__()
        self._watched = title
        self._find = find
        self._interval_s = interval_s
        self._watch = Watch()
        self._is_paused = False
        self._is_looking = False
        self._looked_ns = time.monotonic_ns()
        self._view: View = NODES
        self._orders: dict[str, tuple[int, bool]] = {}
        """By view: the sort column, and whether the order is ascending."""
        self._wanted = ""
        self._count = 0
        self._left_out: list[str] = []
        """Columns for which the terminal is too narrow."""
        self.picture = Picture(nodes=[], streams=[], losses=[], consumers=[], endpoints=[])
        """The displayed picture."""

    def compose(self) -> ComposeResult:
        yield Static(id="heading", markup=False)
        yield Static(id="reasons", markup=False)
        yield Input(id="filter", placeholder="show rows with this text; Enter keeps the filter, Escape removes it")
        yield DataTable(id="table", cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        self._draw()
        self._table().focus()
        self._look()
        self.set_interval(self._interval_s, self._look)
        self.set_interval(HEADING_SECONDS, self._draw_heading)

    # Keys

    def action_view(self, number: int) -> None:
        self._view = VIEWS[number]
        self._draw()

    def action_next_view(self) -> None:
        self.action_view((VIEWS.index(self._view) + 1) % len(VIEWS))

    def action_sort(self) -> None:
        """Sort by the next column; after the last column, unsorted."""
        order, _ = self._orders.pop(self._view.name, (-1, False))
        if order + 1 < len(self._view.columns):
            self._orders[self._view.name] = order + 1, False
        self._draw()

    def action_reverse(self) -> None:
        if self._view.name in self._orders:
            order, is_rising = self._orders[self._view.name]
            self._orders[self._view.name] = order, not is_rising
            self._draw()

    def action_filter(self) -> None:
        entry = self.query_one("#filter", Input)
        entry.display = True
        entry.focus()

    def action_all(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._draw_heading()
        self._look()

    def on_input_changed(self, event: Input.Changed) -> None:
        self._wanted = event.value.strip()
        self._draw()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self._table().focus()

    # Polling

    def _look(self) -> None:
        """Poll in the background, so that a node that does not answer does not block the keys."""
        if not self._is_paused and not self._is_looking:
            self._is_looking = True
            self._fetch()

    @work
    async def _fetch(self) -> None:
        try:
            readings = await fetch_all(self._find())
        finally:
            self._is_looking = False
        if not self._is_paused:
            self._looked_ns = time.monotonic_ns()
            self.picture = self._watch.take(readings, self._looked_ns)
            self._draw()

    # Drawing

    def _table(self) -> DataTable[Text]:
        return self.query_one("#table", DataTable)

    def _draw_heading(self) -> None:
        age_s = (time.monotonic_ns() - self._looked_ns) / NS_PER_SECOND
        states = Counter(node.state for node in self.picture.nodes)
        parts = [
            f"{self._watched}: " + ", ".join(f"{count} {state}" for state, count in states.items()),
            f"{self._view.name}: {self._count:,}",
        ]
        if self._count > ROWS_MAX:
            parts.append(f"first {ROWS_MAX} shown")
        if self._view.name in self._orders:
            order, is_rising = self._orders[self._view.name]
            parts.append(f"by {self._view.columns[order].title}, {'ascending' if is_rising else 'descending'}")
        if self._left_out:
            parts.append(f"too wide: {', '.join(self._left_out)}")
        if self._wanted:
            parts.append(f"with {self._wanted!r}")
        if self._is_paused:
            parts.append(f"PAUSED, {duration(age_s)} old")
        elif age_s > 2 * self._interval_s + 1:
            parts.append(f"{duration(age_s)} old")
        for heading in self.query("#heading").results(
            Static
        ):  # the heading no longer exists while the application ends
            heading.update(" │ ".join(parts))

    def _draw(self) -> None:
        order, is_rising = self._orders.get(self._view.name, (None, False))
        rows, self._count = self._view.table(
            self.picture, order=order, is_rising=is_rising, wanted=self._wanted, rows_max=ROWS_MAX
        )
        titles = [column.title for column in self._view.columns]
        count = fitting(titles, rows, self.size.width - SCROLLBAR_WIDTH)
        self._left_out = titles[count:]
        self._draw_heading()
        self._draw_reasons()
        for table in self.query("#table").results(DataTable):
            self._fill(table, titles[:count], [cells[:count] for cells in rows])

    def _draw_reasons(self) -> None:
        told = reasons(self.picture)
        for panel in self.query("#reasons").results(Static):
            panel.display = bool(told)
            panel.update("\n".join(told))

    def on_resize(self) -> None:
        self._draw()

    def _fill(self, table: DataTable[Text], titles: list[str], rows: list[list[Text]]) -> None:
        """Change cells in place if the table's shape is unchanged, to keep its cursor."""
        if [str(column.label) for column in table.ordered_columns] != titles:
            table.clear(columns=True)
            table.add_columns(*titles)
        if table.row_count != len(rows):
            at = table.cursor_row
            table.clear()
            table.add_rows(rows)
            table.move_cursor(row=min(at, max(0, len(rows) - 1)))
            return
        keys = list(table.columns)
        for row, cells in zip(list(table.rows), rows, strict=True):
            for column, cell in zip(keys, cells, strict=True):
                before = table.get_cell(row, column)
                if (before.plain, before.style) != (cell.plain, cell.style):
                    table.update_cell(row, column, cell, update_width=True)
