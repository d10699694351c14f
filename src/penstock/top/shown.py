"""The rows of a picture as cells of a table."""

from collections.abc import Callable

from rich.text import Text

from penstock.top.picture import CLASSES, ConsumerRow, NodeRow, StreamRow

NODE_COLUMNS = ("node", "kind", "state", "in/s", "out/s", "p50 µs", "p99 µs", "lost", "consumers")
STREAM_COLUMNS = ("node", "stream", "state", "position", "messages/s")
CONSUMER_COLUMNS = (
    "node", "consumer", "destination", "critical", "adaptive", "metered", "out/s", "kB/s", "conflated/s",
    "conflated", "congested", "overruns", "waiting", "subscriptions",
)  # fmt: skip

ORDERS: dict[str, Callable[[ConsumerRow], float]] = {
    "out/s": lambda row: row.out_per_s or 0.0,
    "conflated/s": lambda row: row.conflated_per_s or 0.0,
    "congested": lambda row: row.congested,
    "overruns": lambda row: row.overruns,
    "waiting": lambda row: row.waiting,
}
"""By what consumers can be put in order; those with the most come first."""


def node_cells(row: NodeRow) -> list[Text]:
    return [
        word(row.node),
        word(row.kind),
        word(row.state, "" if row.is_well else "red"),
        rate(row.in_per_s),
        rate(row.out_per_s),
        *(number(row.latency_us.get(name), "{:,.1f}") for name in ("p50", "p99")),
        number(row.lost, style="red" if row.lost else ""),
        number(row.consumers),
    ]


def stream_cells(row: StreamRow) -> list[Text]:
    return [word(row.node), word(row.stream), word(row.state), number(row.position), rate(row.per_s)]


def consumer_cells(row: ConsumerRow) -> list[Text]:
    return [
        word(row.node),
        word(row.consumer),
        word(row.destination),
        *(number(row.shares.get(name), "{:.0%}") for name in CLASSES),
        rate(row.out_per_s),
        rate(None if row.bytes_per_s is None else row.bytes_per_s / 1_000),
        rate(row.conflated_per_s),
        number(row.conflated),
        number(row.congested),
        number(row.overruns, style="red" if row.overruns else ""),
        number(row.waiting),
        number(row.subscriptions),
    ]


def word(text: str, style: str = "") -> Text:
    """What others wrote is shown as it is: neither as markup nor as orders to the terminal."""
    return Text("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text), style)


def number(value: float | None, form: str = "{:,}", style: str = "") -> Text:
    return Text("" if value is None else form.format(value), style, justify="right")


def rate(value: float | None) -> Text:
    return number(value, "{:,.0f}")
