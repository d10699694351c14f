"""Views of a picture: columns, cell formats and sort orders."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

from rich.text import Text

from penstock.top.core.picture import WELL, ConsumerRow, EndpointRow, LossRow, NodeRow, Picture, State, StreamRow

TEXT_SIZE_MAX, REASON_SIZE_MAX = 100, 400
PADDING = 2
"""Blanks beside each column."""
NOTHING = "-"

AnyRow: TypeAlias = NodeRow | StreamRow | LossRow | ConsumerRow | EndpointRow
Value: TypeAlias = str | float | None

_STYLES = {
    State.UP: "green",
    State.DEGRADED: "yellow",
    State.FAILED: "bold red",
    State.FAILING: "bold red",
    State.UNREACHABLE: "red",
    State.GARBLED: "magenta",
}


class Column(NamedTuple):
    title: str
    value: Callable[[Any], Value]
    """The sort value; None sorts last."""

    write: Callable[[Any], str] | None = None
    """Formats a value that is not None; text is written unchanged."""

    style: Callable[[Any], str] | None = None

    def cell(self, row: AnyRow) -> Text:
        value = self.value(row)
        style = self.style(row) if self.style is not None else ""
        if row.age_s is not None:
            style = f"{style} dim".strip()
        if value is None:
            return Text(NOTHING, style, justify="left" if self.write is None else "right")
        if self.write is None:
            return word(str(value), style)
        return Text(self.write(value)[:TEXT_SIZE_MAX], style, justify="right")


class View(NamedTuple):
    name: str
    columns: tuple[Column, ...]
    rows: Callable[[Picture], Sequence[AnyRow]]

    def table(
        self,
        picture: Picture,
        *,
        order: int | None = None,
        is_rising: bool = False,
        wanted: str = "",
        rows_max: int | None = None,
    ) -> tuple[list[list[Text]], int]:
        """Return the cells of the first `rows_max` rows that contain `wanted`, sorted by column `order` or in node
        order, and the number of such rows.
        """
        rows = self.rows(picture)
        if order is not None:
            rows = _ordered(rows, self.columns[order], is_rising)
        if not wanted:  # with thousands of consumers, build no cells that are not shown
            return [self._cells(row) for row in rows[:rows_max]], len(rows)
        found = [cells for cells in map(self._cells, rows) if _has(cells, wanted)]
        return found[:rows_max], len(found)

    def _cells(self, row: AnyRow) -> list[Text]:
        return [column.cell(row) for column in self.columns]


def reasons(picture: Picture) -> list[str]:
    """Say for each node that is not well why, in one sentence."""
    told = []
    for node in picture.nodes:
        if node.state not in WELL:
            since = f"; its last answer is {duration(node.age_s)} old" if node.age_s is not None else ""
            sentence = f"{node.node} is {node.state}: {node.detail or 'it gives no reason'}{since}"
            told.append(word(sentence, size_max=REASON_SIZE_MAX).plain)
    return told


def fitting(titles: Sequence[str], rows: Sequence[Sequence[Text]], width: int) -> int:
    """Return how many of the first columns fit into the width, with PADDING beside each; at least one."""
    taken = 0
    for number, title in enumerate(titles):
        taken += PADDING + max(len(title), *(row[number].cell_len for row in rows), 0)
        if taken > width:
            return max(1, number)
    return len(titles)


def word(text: str, style: str = "", *, size_max: int = TEXT_SIZE_MAX) -> Text:
    """Return untrusted text literally: without markup, terminal control sequences, or unlimited length."""
    shown = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text[:size_max])
    return Text(shown + ("…" if len(text) > size_max else ""), style)


def duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 120:
        return f"{whole} s"
    minutes, hours = whole // 60, whole // 3_600
    if minutes < 120:
        return f"{minutes} min"
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


def _ordered(rows: Iterable[AnyRow], column: Column, is_rising: bool) -> list[AnyRow]:
    known, unknown = list[AnyRow](), list[AnyRow]()
    for row in rows:
        (unknown if column.value(row) is None else known).append(row)
    return sorted(known, key=column.value, reverse=not is_rising) + unknown  # type: ignore[arg-type]


def _has(cells: list[Text], wanted: str) -> bool:
    return any(wanted.casefold() in cell.plain.casefold() for cell in cells)


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _latency(name: str) -> Callable[[NodeRow], Value]:
    return lambda row: row.latency_us.get(name) or None  # 0: nothing measured yet


def _share(name: str) -> Callable[[ConsumerRow], Value]:
    return lambda row: row.classes[name].share if name in row.classes else None


def _bad(value: Callable[[Any], object]) -> Callable[[Any], str]:
    return lambda row: "red" if value(row) else ""


_NODE = Column("node", lambda row: row.node)
_AGE = Column("age", lambda row: row.age_s, duration)

NODES = View(
    "nodes",
    (
        _NODE,
        Column("role", lambda row: row.role),
        Column("state", lambda row: row.state, style=lambda row: _STYLES.get(row.state, "")),
        Column("lost", lambda row: row.lost, _count, _bad(lambda row: row.lost)),
        Column("restarts", lambda row: row.restarts, _count, _bad(lambda row: row.restarts)),
        Column("in/s", lambda row: row.in_per_s, _rate),
        Column("out/s", lambda row: row.out_per_s, _rate),
        *(Column(f"{name} µs", _latency(name), "{:,.1f}".format) for name in ("p50", "p99")),
        Column("consumers", lambda row: row.consumers, _count),
        Column("up for", lambda row: row.uptime_s, duration),
        _AGE,
        Column("p99.9 µs", _latency("p99.9"), "{:,.1f}".format),
        Column("garbled", lambda row: row.garbled, _count, _bad(lambda row: row.garbled)),
        Column("detail", lambda row: row.detail),
    ),
    lambda picture: sorted(picture.nodes, key=lambda node: node.state in WELL),
)

STREAMS = View(
    "streams",
    (
        _NODE,
        Column("stream", lambda row: row.stream),
        Column("state", lambda row: row.state),
        Column("position", lambda row: row.position, _count),
        Column("messages/s", lambda row: row.per_s, _rate),
        _AGE,
    ),
    lambda picture: picture.streams,
)

_COUNTERS = (
    _NODE,
    Column("what", lambda row: row.what),
    Column("cause", lambda row: row.cause),
    Column("count", lambda row: row.count, _count),
    Column("per s", lambda row: row.per_s, _rate, _bad(lambda row: row.per_s and not row.is_harmless)),
    Column("component", lambda row: row.component),
    _AGE,
)
LOSSES = View("losses", _COUNTERS, lambda picture: [row for row in picture.losses if not row.is_harmless])
HARMLESS = View("harmless", _COUNTERS, lambda picture: [row for row in picture.losses if row.is_harmless])

CONSUMERS = View(
    "consumers",
    (
        _NODE,
        Column("consumer", lambda row: row.consumer),
        Column("destination", lambda row: row.destination),
        Column("memory", lambda row: row.memory),
        *(Column(name, _share(name), _percent) for name in ("critical", "adaptive", "metered")),
        Column("sent/s", lambda row: row.sent_per_s, _rate),
        Column("B/s", lambda row: row.bytes_per_s, _rate),
        Column("conflated/s", lambda row: row.conflated_per_s, _rate),
        Column("congested/s", lambda row: row.congested_per_s, _rate, _bad(lambda row: row.congested_per_s)),
        Column("sent", lambda row: row.sent, _count),
        Column("conflated", lambda row: row.conflated, _count),
        Column("congested", lambda row: row.congested, _count),
        Column("overruns", lambda row: row.overruns, _count, _bad(lambda row: row.overruns)),
        Column("receipts", lambda row: row.receipts, _count, _bad(lambda row: row.receipts)),
        Column("waiting", lambda row: row.waiting, _count),
        Column("pending", lambda row: row.pending, _count),
        Column("behind", lambda row: "behind" if row.is_behind else "", style=lambda row: "red"),
        Column("topics", lambda row: row.topics, _count),
        Column("items", lambda row: row.items, _count),
        _AGE,
    ),
    lambda picture: picture.consumers,
)

ENDPOINTS = View(
    "endpoints",
    (
        _NODE,
        Column("endpoint", lambda row: row.endpoint),
        Column("for", lambda row: row.consumers),
        Column("messages", lambda row: row.messages, _count),
        Column("bytes", lambda row: row.bytes, _count),
        Column("unsettled", lambda row: row.unsettled, _count),
        Column("flows", lambda row: row.flows, _count),
        Column("in/s", lambda row: row.accepted_per_s, _rate),
        Column("out/s", lambda row: row.delivered_per_s, _rate),
        Column("settled/s", lambda row: row.settled_per_s, _rate),
        Column("accepted", lambda row: row.accepted, _count),
        Column("delivered", lambda row: row.delivered, _count),
        Column("settled", lambda row: row.settled, _count),
        Column("given up", lambda row: row.given_up, _count, _bad(lambda row: row.given_up)),
        _AGE,
    ),
    lambda picture: picture.endpoints,
)

VIEWS = (NODES, STREAMS, LOSSES, CONSUMERS, ENDPOINTS, HARMLESS)
