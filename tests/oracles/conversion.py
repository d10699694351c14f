"""Reference for the conversion state: orders in a dict, levels as sums, statistics from the list of trades.

It shares only the numbers of docs/reference/protocol/state-image.md with the product.
"""

from dataclasses import dataclass, field, replace

OK, UNKNOWN, DUPLICATE, SHORT, REFUSED, INVALID = range(6)
EXTENDED_HOURS, NOT_LAST, NOT_HIGH_LOW, NOT_VOLUME = 2, 256, 512, 1024

MASK = 2**64 - 1
FIRST, SECOND, LAST = 0xA0761D6478BD642F, 0xE7037ED1A0B428DB, 0x8EBC6AF09C88C6E3
PRICE_NONE = 2**63  # as a machine word
LOCATE_NONE = MASK
SESSION, ORDER, REFERENCE, STATISTICS, POSITION, LEVEL, TRADE, EXTENDED = range(1, 9)


SIZE_LIMIT = 2**62
VOLUME = 6
EXTENDED_VOLUME = 12
"""The index of the extended volume in the statistics."""


def fold(a: int, b: int) -> int:
    product = a * b
    return product & MASK ^ product >> 64


def mix(kind: int, place: int, words: list[int]) -> int:
    mixed = fold((kind << 56 | place) ^ FIRST, SECOND)
    words = [word & MASK for word in words]
    for at in range(0, len(words) - 1, 2):
        mixed = fold(words[at] ^ FIRST, words[at + 1] ^ mixed)
    if len(words) % 2:
        mixed = fold(words[-1] ^ FIRST, mixed)
    return fold(mixed ^ SECOND, LAST)


def words_of(text: str, size: int) -> list[int]:
    data = text.encode().ljust(size, b"\0")
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, size, 8)]


@dataclass(frozen=True)
class Order:
    instrument: int
    side: int
    price: int
    shares: int
    participant: int


@dataclass(frozen=True)
class Trade:
    trade_id: int
    price: int
    size: int
    event_ns: int
    conditions: int
    is_broken: bool = False


@dataclass
class Instrument:
    symbol: str
    locate: int | None = None
    venue: str = ""
    round_lot: int = 0
    flags: int = 0
    status: int = 0
    restrictions: int = 0
    reason: str = ""
    limits: tuple[int | None, int | None] = (None, None)
    position: tuple[int, int] = (0, 0)
    previous_close: int | None = None
    trades: list[Trade] = field(default_factory=list)
    whole_levels: list[dict[int, tuple[int, int]]] = field(default_factory=lambda: [{}, {}])


def values_of(trades: list[Trade]):
    """open, high, low, last, last size, volume, turnover, count."""
    lasts = [trade for trade in trades if not trade.conditions & NOT_LAST]
    ranged = [trade.price for trade in trades if not trade.conditions & NOT_HIGH_LOW]
    counted = [trade for trade in trades if not trade.conditions & NOT_VOLUME]
    return (
        lasts[0].price if lasts else None,
        max(ranged, default=None),
        min(ranged, default=None),
        lasts[-1].price if lasts else None,
        lasts[-1].size if lasts else 0,
        sum(trade.size for trade in counted),
        sum(trade.price * trade.size for trade in counted),
        len(counted),
    )


@dataclass
class OracleState:
    """Every change returns (answer, depth of the changed level or None)."""

    instruments: list[Instrument] = field(default_factory=list)
    orders: dict[int, Order] = field(default_factory=dict)
    session: tuple[str, int, int] = ("", 0, 0)

    # Books

    def levels(self, instrument: int, side: int) -> list[tuple[int, int, int]]:
        """(price, size, count), best first."""
        sums = dict(self.instruments[instrument].whole_levels[side])
        for order in self.orders.values():
            if (order.instrument, order.side) == (instrument, side):
                size, count = sums.get(order.price, (0, 0))
                sums[order.price] = size + order.shares, count + 1
        return sorted(((price, *sums[price]) for price in sums), reverse=side == 0)

    def depth(self, order: Order) -> int:
        return [price for price, _, _ in self.levels(order.instrument, order.side)].index(order.price)

    def add_order(self, reference: int, instrument: int, side: int, price: int, shares: int, participant: int = 0):
        if shares == 0:
            return INVALID, None
        if reference in self.orders:
            return DUPLICATE, None
        self.orders[reference] = Order(instrument, side, price, shares, participant)
        return OK, self.depth(self.orders[reference])

    def execute_order(self, reference: int, shares: int):
        if reference not in self.orders:
            return UNKNOWN, None
        if shares == 0:
            return INVALID, None
        order = self.orders[reference]
        depth = self.depth(order)
        if shares < order.shares:
            self.orders[reference] = replace(order, shares=order.shares - shares)
        else:
            del self.orders[reference]
        return SHORT if shares > order.shares else OK, depth

    def delete_order(self, reference: int):
        if reference not in self.orders:
            return UNKNOWN, None
        return self.execute_order(reference, self.orders[reference].shares)

    def replace_order(self, old: int, new: int, shares: int, price: int):
        if old not in self.orders:
            return UNKNOWN, None
        if shares == 0:
            return INVALID, None
        if new != old and new in self.orders:
            return DUPLICATE, None
        order = self.orders[old]
        _, depth_before = self.delete_order(old)
        _, depth = self.add_order(new, order.instrument, order.side, price, shares, order.participant)
        return OK, min(depth, depth_before)

    def set_level(self, instrument: int, side: int, price: int, size: int, count: int = 0):
        levels = self.instruments[instrument].whole_levels[side]
        if levels.get(price) == (size, count):
            return OK, None
        if size == 0 and price not in levels:
            return UNKNOWN, None
        levels[price] = size, count
        depth = [each for each, _, _ in self.levels(instrument, side)].index(price)
        if size == 0:
            del levels[price]
        return OK, depth

    def clear_book(self, instrument: int | None = None) -> None:
        for number, each in enumerate(self.instruments):
            if instrument in (None, number):
                each.whole_levels = [{}, {}]
        self.orders = {
            reference: order
            for reference, order in self.orders.items()
            if instrument is not None and order.instrument != instrument
        }

    # Trades

    def add_trade(self, instrument: int, trade_id: int, price: int, size: int, event_ns: int, conditions: int) -> int:
        if size == 0 or self.volume(instrument) + size >= SIZE_LIMIT:
            return INVALID
        self.instruments[instrument].trades.append(Trade(trade_id, price, size, event_ns, conditions))
        return OK

    def volume(self, instrument: int) -> int:
        """Volume of regular and extended hours together."""
        values = self.statistics(instrument)
        return values[VOLUME] + values[EXTENDED_VOLUME]

    def find_trade(self, instrument: int, trade_id: int) -> int | None:
        trades = self.instruments[instrument].trades
        found = [at for at, trade in enumerate(trades) if trade.trade_id == trade_id and not trade.is_broken]
        return found[-1] if found else None

    def break_trade(self, instrument: int, trade_id: int) -> int:
        at = self.find_trade(instrument, trade_id)
        if at is None:
            return UNKNOWN
        trades = self.instruments[instrument].trades
        trades[at] = replace(trades[at], is_broken=True)
        return OK

    def correct_trade(self, instrument: int, trade_id: int, price: int, size: int, conditions: int) -> int:
        at = self.find_trade(instrument, trade_id)
        if at is None:
            return UNKNOWN
        if size == 0 or self.volume(instrument) + size >= SIZE_LIMIT:
            return INVALID
        trades = self.instruments[instrument].trades
        kept = trades[at].conditions & EXTENDED_HOURS
        trades[at] = replace(trades[at], price=price, size=size, conditions=conditions & ~EXTENDED_HOURS | kept)
        return OK

    def statistics(self, instrument: int):
        """open, high, low, last, previous close, last size, volume, turnover, count of regular hours; high, low, last,
        volume, turnover, count of extended hours."""
        owner = self.instruments[instrument]
        trades = [trade for trade in owner.trades if not trade.is_broken]
        regular = values_of([trade for trade in trades if not trade.conditions & EXTENDED_HOURS])
        extended = values_of([trade for trade in trades if trade.conditions & EXTENDED_HOURS])
        _, high, low, last, _, *counted = extended
        return (*regular[:4], owner.previous_close, *regular[4:], high, low, last, *counted)

    def new_day(self) -> None:
        self.clear_book()
        for number, each in enumerate(self.instruments):
            last = self.statistics(number)[3]
            each.previous_close = each.previous_close if last is None else last
            each.trades = []
            each.locate, each.round_lot, each.flags, each.status, each.restrictions = None, 0, 0, 0, 0
            each.reason, each.limits, each.position = "", (None, None), (0, 0)

    # Digest

    def digest(self) -> int:
        name, day_ns, phase = self.session
        total = mix(SESSION, 0, [*words_of(name, 16), day_ns, phase, 0, 0, 0])
        for reference, order in self.orders.items():
            place = order.instrument * 2 + order.side
            total += mix(ORDER, 0, [reference, order.price, order.shares, place | order.participant << 32])
        for number in range(len(self.instruments)):
            total += self.instrument_digest(number)
        return total & MASK

    def instrument_digest(self, number: int) -> int:
        each = self.instruments[number]
        values = self.statistics(number)
        prices = [PRICE_NONE if price is None else price for price in values[:5]]
        last_size, volume, turnover, count = values[5:9]
        late_prices = [PRICE_NONE if price is None else price for price in values[9:12]]
        late_volume, late_turnover, late_count = values[12:]
        limits = [PRICE_NONE if price is None else price for price in each.limits]
        venue = int.from_bytes(each.venue.encode().ljust(4, b"\0"), "little")
        total = mix(
            REFERENCE,
            number,
            [
                *words_of(each.symbol, 16),
                venue | each.round_lot << 32,
                LOCATE_NONE if each.locate is None else each.locate,
                each.flags | each.status << 32 | each.restrictions << 40,
                *words_of(each.reason, 8),
                *limits,
            ],
        )
        total += mix(STATISTICS, number, [*prices, last_size, volume, turnover, turnover >> 64, count])
        late = [*late_prices, late_volume, late_turnover, late_turnover >> 64, late_count]
        total += mix(EXTENDED, number, late)
        total += mix(POSITION, number, list(each.position))
        for side in (0, 1):
            for price, size, orders in self.levels(number, side):
                total += mix(LEVEL, number << 1 | side, [price, size, orders])
        for ordinal, trade in enumerate(each.trades):
            conditions = trade.conditions | trade.is_broken << 30
            words = [trade.trade_id, trade.price, trade.size, trade.event_ns, conditions]
            total += mix(TRADE, number << 32 | ordinal, words)
        return total
