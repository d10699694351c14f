"""Widgets for Jupyter. Python reads the messages and sends texts and numbers; table.js and chart.js draw them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from penstock.base.errors import ConfigurationError
from penstock.notebook.follower import Follower
from penstock.notebook.views import NewestRows, RecentPoints

INTERVAL_S = 0.25
ROWS_MAX = 50
TOPICS_MAX = 8
POINTS_MAX = 240
HERE = Path(__file__).parent


class _Live(anywidget.AnyWidget):
    """A widget that follows a source until stop()."""

    state = traitlets.Unicode("").tag(sync=True)
    """Why nothing more is shown; empty while the widget follows its source."""
    _follower: Follower | None = None

    def _follow(self, source: Any, view: Any, interval_s: float) -> None:
        if interval_s <= 0:
            raise ConfigurationError(f"an interval of {interval_s} s", hint="a positive number of seconds")
        self._follower = Follower(source, view.take, self._show, self._end, interval_s)
        self._follower.start()

    def stop(self) -> None:
        """Show nothing more. The subscription stays open, and another reader can use the subscription."""
        if self._follower is not None:
            self._follower.stop()

    def close(self) -> None:
        self.stop()
        super().close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.state and f' ({self.state})'}>"

    def _show(self) -> None:
        raise NotImplementedError

    def _end(self, reason: str) -> None:
        self._show()
        self.state = reason


class LiveTable(_Live):
    """The newest message of each topic, repainted every `interval_s` seconds.

    `source` is a subscription, which the widget reads from now on, or records of a node. `fields` are the columns;
    without them, the first fields of the first message. At most `rows_max` topics have a row.
    """

    _esm = HERE / "table.js"
    columns = traitlets.List(traitlets.Unicode()).tag(sync=True)
    rows = traitlets.List(traitlets.List(traitlets.Unicode())).tag(sync=True)
    note = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self, source: Any, fields: Sequence[str] = (), *, rows_max: int = ROWS_MAX, interval_s: float = INTERVAL_S
    ) -> None:
        super().__init__()
        self._view = NewestRows(fields, rows_max)
        self.columns = self._view.columns
        self._follow(source, self._view, interval_s)

    def _show(self) -> None:
        with self.hold_sync():
            self.columns, self.rows, self.note = self._view.columns, self._view.rows, self._view.note


class LiveChart(_Live):
    """A numeric field of several topics over time: a point every `interval_s` seconds, the last `points_max` of them.

    `source` is a subscription, which the widget reads from now on, or records of a node. The first `topics_max` topics
    have a line.
    """

    _esm = HERE / "chart.js"
    field = traitlets.Unicode().tag(sync=True)
    series = traitlets.List().tag(sync=True)

    def __init__(
        self,
        source: Any,
        field: str,
        *,
        topics_max: int = TOPICS_MAX,
        points_max: int = POINTS_MAX,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__()
        self._view = RecentPoints(field, topics_max, points_max)
        self.field = field
        self._follow(source, self._view, interval_s)

    def _show(self) -> None:
        self._view.sample(time.time_ns() // 1_000_000)
        self.series = self._view.series
