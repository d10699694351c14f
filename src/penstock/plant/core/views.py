"""Derived views: items that a ticker plant computes from other items, batch by batch.

| view     | of              | item               | model          |
| `spread` | quotes          | TOPIC.view.spread  | spread         |
| `top`    | book snapshots  | TOPIC.view.top     | top_of_book    |
| `day`    | trades          | TOPIC.view.day     | day_statistics |

A view computes whole columns at once. The day's trades are kept by the compiled state of converters
(convert/books/state.py), so that corrections and cancellations apply as they do in the history.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy
from numpy.typing import NDArray

from penstock.convert.books.state import ConversionState, StateLimits
from penstock.middleware.core.events import SessionEvent
from penstock.model import MessageModel, shipped
from penstock.wire import MessageBatch, PacketMessage

ViewName: TypeAlias = Literal["spread", "top", "day"]
Content: TypeAlias = MessageBatch | Sequence[PacketMessage]

QUOTE, BOOK, TRADE = shipped("quote"), shipped("book_snapshot"), shipped("trade")
SPREAD, TOP, DAY = shipped("spread"), shipped("top_of_book"), shipped("day_statistics")
QUOTE_8, BOOK_8, TRADE_8 = shipped("quote_8"), shipped("book_snapshot_8"), shipped("trade_8")
TOP_8, DAY_8 = shipped("top_of_book_8"), shipped("day_statistics_8")
"""Models whose quantities have decimals."""

PRICE_MISSING = SPREAD.fields_by_name["spread"].missing
CORRECT, CANCEL = (TRADE.fields_by_name["action"].values[name] for name in ("correct", "cancel"))
TURNOVER_SCALE = 10**4
"""The state keeps turnover with 8 decimals in addition to those of quantities; the model has 4."""

STREAMS_MAX = 256
"""Number of source streams whose days are kept separately; all further streams share one day."""

PRICES = ("open", "high", "low", "last", "previous_close", "extended_high", "extended_low", "extended_last")

_IDENTITY = ("symbol", "venue", "event_time", "receive_time", "source_seq")


Source: TypeAlias = tuple[int, int, int]
"""The origin of a record: number of the feed, source stream, tag of its session."""

SourceOf: TypeAlias = Callable[[bytes, int], Source | None]
"""Returns the origin of the current record of an item with this topic and model."""


class Derived(NamedTuple):
    """One update of a derived item."""

    topic: str
    model: MessageModel
    record: memoryview
    source: Source | None
    """The source of the derived record; both are withdrawn together."""


class View(Protocol):
    """Computes one kind of item."""

    source: MessageModel
    made: MessageModel

    def derive(self, topics: list[str], rows: NDArray[Any], sources: list[Source | None]) -> Iterable[Derived]:
        """`rows` are records of the source model; row i has the topic topics[i] and the origin sources[i]."""


class SpreadView:
    made = SPREAD

    def __init__(self, source: MessageModel = QUOTE) -> None:
        self.source = source

    def derive(self, topics: list[str], rows: NDArray[Any], sources: list[Source | None]) -> Iterable[Derived]:
        made = _blank(SPREAD, rows)
        bid, ask = rows["bid_price"], rows["ask_price"]
        is_whole = (bid != PRICE_MISSING) & (ask != PRICE_MISSING)
        spread = ask - bid
        made["spread"] = numpy.where(is_whole, spread, PRICE_MISSING)
        made["widest"] = made["spread"]
        made["mid"] = numpy.where(is_whole, bid + (spread >> 1), PRICE_MISSING)
        made["update_count"] = numpy.maximum(rows["update_count"], 1)
        return _derived(topics, "spread", SPREAD, made, sources)


class TopView:
    def __init__(self, source: MessageModel = BOOK, made: MessageModel = TOP) -> None:
        self.source = source
        self.made = made

    def derive(self, topics: list[str], rows: NDArray[Any], sources: list[Source | None]) -> Iterable[Derived]:
        made = _blank(self.made, rows)
        for side in ("bid", "ask"):
            made[f"{side}_price"] = rows[f"{side}_price_1"]
            made[f"{side}_size"] = rows[f"{side}_size_1"]
        made["update_count"] = numpy.maximum(rows["update_count"], 1)
        return _derived(topics, "top", self.made, made, sources)


class _Day:
    """The trades of one source stream's session."""

    def __init__(self, limits: StateLimits, seed: int) -> None:
        self.state = ConversionState(limits, seed)
        self.numbers: dict[str, int] = {}
        """Numbers of instruments in the state, by topic."""

    def number(self, topic: str) -> int:
        """Return the instrument number of a topic, negative if there is no room. The state names instruments by
        short numbers."""
        number = self.numbers.get(topic)
        if number is None:
            number = self.state.instrument(f"{len(self.numbers)}")
            if number >= 0:
                self.numbers[topic] = number
        return number


class DayView:
    """One update for each instrument with trades in the batch. Sessions, and so days, are those of each source
    stream."""

    def __init__(
        self,
        seed: int,
        instruments_max: int,
        trades_max: int,
        source: MessageModel = TRADE,
        made: MessageModel = DAY,
    ) -> None:
        self.source = source
        self.made = made
        self._turnover_scale = TURNOVER_SCALE * 10 ** source.fields_by_name["quantity"].decimals
        self._limits = StateLimits(instruments=instruments_max, trades=trades_max, orders=1, levels=1)
        self._seed = seed
        self._days: dict[tuple[int, int] | None, _Day] = {}

    @property
    def refused(self) -> int:
        """Number of trades and instruments refused for lack of room."""
        return sum(sum(day.state.refused) for day in self._days.values())

    def new_day(self, stream: tuple[int, int]) -> None:
        """A new session of this feed's source stream: reset the day's trades."""
        if (day := self._days.get(stream)) is not None:
            day.state.new_day()

    def derive(self, topics: list[str], rows: NDArray[Any], sources: list[Source | None]) -> Iterable[Derived]:
        last: dict[str, tuple[int, _Day, Source | None]] = {}
        actions, conditions = rows["action"].tolist(), rows["conditions"].tolist()
        values = zip(
            topics,
            sources,
            rows["trade_id"].tolist(),
            rows["price"].tolist(),
            rows["quantity"].tolist(),
            rows["event_time"].tolist(),
            strict=True,
        )
        for index, (topic, source, trade_id, price, quantity, event_ns) in enumerate(values):
            day = self._day(source)
            number = day.number(topic)
            if number < 0:
                continue
            last[topic] = index, day, source
            if actions[index] == CORRECT:
                day.state.correct_trade(number, trade_id, price, quantity, conditions[index])
            elif actions[index] == CANCEL:
                day.state.break_trade(number, trade_id)
            else:
                day.state.add_trade(number, trade_id, price, quantity, event_ns, conditions[index])
        chosen = rows[[index for index, _, _ in last.values()]]
        made = _blank(self.made, chosen)
        for row, (topic, (_, day, _)) in zip(made, last.items(), strict=True):
            _fill(row, day.state, day.numbers[topic], self._turnover_scale)
        return _derived(list(last), "day", self.made, made, [source for _, _, source in last.values()])

    def _day(self, source: Source | None) -> _Day:
        key = None if source is None else source[:2]
        if key not in self._days and len(self._days) >= STREAMS_MAX:
            key = None
        if key not in self._days:
            self._days[key] = _Day(self._limits, self._seed)
        return self._days[key]


def _fill(row: Any, state: ConversionState, number: int, turnover_scale: int) -> None:
    day = state.day_statistics(number)
    for name in PRICES:
        price = getattr(day, name)
        row[name] = PRICE_MISSING if price is None else price
    for hours in ("", "extended_"):
        for name in ("volume", "trade_count"):
            row[f"{hours}{name}"] = getattr(day, f"{hours}{name}")
        row[f"{hours}turnover"] = getattr(day, f"{hours}turnover") // turnover_scale


class Views:
    """The configured views of a plant."""

    def __init__(self, names: Sequence[ViewName], *, seed: int, instruments_max: int, trades_max: int) -> None:
        room = (seed, instruments_max, trades_max)
        self._days = [DayView(*room), DayView(*room, TRADE_8, DAY_8)] if "day" in names else []
        known: dict[ViewName, Sequence[View]] = {
            "spread": [SpreadView(), SpreadView(QUOTE_8)],
            "top": [TopView(), TopView(BOOK_8, TOP_8)],
            "day": self._days,
        }
        self._tags: dict[tuple[int, int], tuple[int, str]] = {}  # the session of each source stream
        self._views = [view for name in dict.fromkeys(names) for view in known[name]]

    def __bool__(self) -> bool:
        return bool(self._views)

    @property
    def models(self) -> list[MessageModel]:
        return list(dict.fromkeys(view.made for view in self._views))

    def derive(self, content: Content, source_of: SourceOf = lambda *_: None) -> list[Derived]:
        """Return the derived updates of these messages, in order within each view."""
        made: list[Derived] = []
        for view in self._views:
            topics, rows = _rows(content, view.source)
            if topics:
                known = {topic: source_of(topic.encode(), view.source.id) for topic in set(topics)}
                made += view.derive(topics, rows, [known[topic] for topic in topics])
        return made

    def change_session(self, stream: tuple[int, int], event: SessionEvent) -> None:
        """Apply the begin or end of a session of a feed's source stream. "running" reports a session that had begun
        before; if another session was known, the begin was missed."""
        if self._days and self._tags.get(stream) != (event.tag, event.session):
            if event.kind == "begin" or (event.kind == "running" and stream in self._tags):
                for day in self._days:
                    day.new_day(stream)
            if stream in self._tags or len(self._tags) < STREAMS_MAX:
                self._tags[stream] = event.tag, event.session


def _rows(content: Content, model: MessageModel) -> tuple[list[str], NDArray[Any]]:
    """Return topics and records of the messages of a model; messages of another size are skipped."""
    if isinstance(content, MessageBatch):
        messages, data = content.messages, content.data
        chosen = messages[(messages["model_id"] == model.id) & (messages["payload_size"] == model.record_size)]
        places = zip(chosen["topic_offset"].tolist(), chosen["topic_size"].tolist(), strict=True)
        topics = [str(data[at : at + size], "utf-8") for at, size in places]
        return topics, content.records(model.dtype, model.id)
    found = [each for each in content if each.model_id == model.id and len(each.payload) == model.record_size]
    records = numpy.frombuffer(b"".join(each.payload for each in found), model.dtype)
    return [each.topic for each in found], records


def _blank(model: MessageModel, rows: NDArray[Any]) -> NDArray[Any]:
    """Return records of a view with only the fields that identify instrument and time."""
    made = numpy.zeros(len(rows), model.dtype)
    for name in _IDENTITY:
        made[name] = rows[name]
    return made


def _derived(
    topics: Sequence[str], name: ViewName, model: MessageModel, made: NDArray[Any], sources: Sequence[Source | None]
) -> list[Derived]:
    memory, size = made.view(numpy.uint8).data, model.record_size
    return [
        Derived(f"{topic}.view.{name}", model, memory[at * size : (at + 1) * size], source)
        for at, (topic, source) in enumerate(zip(topics, sources, strict=True))
    ]
