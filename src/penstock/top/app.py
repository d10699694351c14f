"""`penstock top` on a terminal: three tables that are drawn again every second or so."""

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Static

from penstock.top.picture import Picture, picture_of
from penstock.top.places import Place
from penstock.top.reading import Reading, read_all
from penstock.top.shown import (
    CONSUMER_COLUMNS,
    NODE_COLUMNS,
    ORDERS,
    STREAM_COLUMNS,
    consumer_cells,
    node_cells,
    stream_cells,
)

CONSUMERS_SHOWN_MAX = 200


class TopApp(App[None]):
    """Watches these places until it is told to end."""

    TITLE = "penstock top"
    CSS = """
    Static { padding: 0 1; color: $text-muted; }
    DataTable { height: auto; max-height: 40%; margin-bottom: 1; }
    #consumers { height: 1fr; max-height: 100%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("p", "pause", "pause"),
        Binding("s", "sort", "sort consumers"),
    ]

    def __init__(self, title: str, places: Sequence[Place], interval_s: float) -> None:
        super().__init__()
        self._heading = title
        self._places = places
        self._interval_s = interval_s
        self._before: list[Reading] = []
        self._is_paused = False
        self._is_reading = False
        self._order = next(iter(ORDERS))
        self.picture = Picture(0.0, [], [], [])
        """What is shown."""

    def compose(self) -> ComposeResult:
        yield Static(id="heading", markup=False)
        for name, columns in (("nodes", NODE_COLUMNS), ("streams", STREAM_COLUMNS), ("consumers", CONSUMER_COLUMNS)):
            table: DataTable[Text] = DataTable(id=name, cursor_type="none", zebra_stripes=True)
            table.add_columns(*columns)
            yield table
        yield Footer()

    def on_mount(self) -> None:
        self._show_heading()
        self._ask()
        self.set_interval(self._interval_s, self._ask)

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._show_heading()

    def action_sort(self) -> None:
        orders = list(ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self._show()

    def _ask(self) -> None:
        """In a thread of its own: a node that does not answer must not stop the keys."""
        if not self._is_paused and not self._is_reading:
            self._is_reading = True
            self.run_worker(self._read, thread=True)

    def _read(self) -> None:
        try:
            readings = read_all(self._places)
            self.call_from_thread(self._take, readings)
        finally:
            self._is_reading = False

    def _take(self, readings: list[Reading]) -> None:
        self.picture = picture_of(readings, self._before)
        self._before = readings
        self._show()

    def _show_heading(self) -> None:
        state = "paused" if self._is_paused else f"every {self._interval_s:g} s"
        shown = f"{min(len(self.picture.consumers), CONSUMERS_SHOWN_MAX)} of {len(self.picture.consumers)} consumers"
        self.query_one("#heading", Static).update(f"{self._heading}: {state}; {shown}, most {self._order} first")

    def _show(self) -> None:
        self._show_heading()
        ordered = sorted(self.picture.consumers, key=ORDERS[self._order], reverse=True)[:CONSUMERS_SHOWN_MAX]
        self._fill("#nodes", [node_cells(row) for row in self.picture.nodes])
        self._fill("#streams", [stream_cells(row) for row in self.picture.streams])
        self._fill("#consumers", [consumer_cells(row) for row in ordered])

    def _fill(self, name: str, rows: list[list[Text]]) -> None:
        """Cells are changed in place where the table has as many rows already, so that scrolling is not lost."""
        table: DataTable[Text] = self.query_one(name, DataTable)
        table.display = bool(rows)
        if table.row_count != len(rows):
            table.clear()
            table.add_rows(rows)
            return
        for at, row in enumerate(rows):
            for column, cell in enumerate(row):
                if table.get_cell_at((at, column)) != cell:  # type: ignore[arg-type]
                    table.update_cell_at((at, column), cell, update_width=True)  # type: ignore[arg-type]
