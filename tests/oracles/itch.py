"""ITCH 5.0 in plain Python: the exchange's table of messages, and a book that checks every message.

Shares no code with the product.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

SIZES = {
    "S": 12, "R": 39, "H": 25, "Y": 20, "L": 26, "V": 35, "W": 12, "K": 28, "J": 35, "h": 21, "A": 36, "F": 40,
    "E": 31, "C": 36, "X": 23, "D": 19, "U": 35, "P": 44, "Q": 40, "B": 19, "I": 50, "N": 20, "O": 48,
}  # fmt: skip

WITHOUT_STOCK = set("SVWECXDUB")
STOCK_AT = {"L": 15, "A": 24, "F": 24, "P": 24, "Q": 19, "I": 28}


def messages_of(data: bytes) -> Iterator[bytes]:
    """The messages of a file."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">H", data, at)
        assert at + 2 + size <= len(data), f"truncated at {at}"
        yield data[at + 2 : at + 2 + size]
        at += 2 + size


@dataclass
class Order:
    locate: int
    side: str
    price: int
    shares: int


@dataclass
class Market:
    """Reads every message of a day and asserts that it is valid at this point."""

    orders: dict[int, Order] = field(default_factory=dict)
    stocks: dict[int, str] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    matches: dict[int, int] = field(default_factory=dict)
    events: str = ""
    time_ns: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    volume: int = 0
    is_checking_crossed: bool = True
    levels: dict[tuple[int, str], dict[int, int]] = field(default_factory=dict)

    def take(self, message: bytes) -> None:
        kind = chr(message[0])
        assert len(message) == SIZES[kind], (kind, len(message))
        self.counts[kind] = self.counts.get(kind, 0) + 1
        locate, _tracking, high, low = struct.unpack_from(">HHHI", message, 1)
        time_ns = high << 32 | low
        assert self.time_ns <= time_ns < 86_400 * 10**9, "time goes backwards"
        self.time_ns = time_ns
        if kind in "SVW":
            assert locate == 0
        if kind not in WITHOUT_STOCK:
            at = STOCK_AT.get(kind, 11)
            stock = message[at : at + 8].decode("ascii").rstrip()
            if kind == "R":
                assert locate not in self.stocks
                self.stocks[locate] = stock
            assert self.stocks[locate] == stock
        elif kind not in "SVW":
            assert locate in self.stocks
        handler = getattr(self, f"_take_{'halt' if kind == 'h' else kind}", None)
        if handler is not None:
            handler(message, locate)

    def _take_S(self, message: bytes, locate: int) -> None:
        self.events += chr(message[11])
        assert "OSQMEC".startswith(self.events)

    def _take_H(self, message: bytes, locate: int) -> None:
        self.states[locate] = chr(message[19])
        assert self.states[locate] in "HPQT"

    def _take_halt(self, message: bytes, locate: int) -> None:
        assert message[19:20] == b"Q"
        (self.stopped.add if message[20:21] == b"H" else self.stopped.remove)(locate)

    def _take_A(self, message: bytes, locate: int) -> None:
        reference, side, shares = struct.unpack_from(">QcI", message, 11)
        self._enter(reference, locate, side.decode(), shares, struct.unpack_from(">I", message, 32)[0])

    _take_F = _take_A

    def _take_E(self, message: bytes, locate: int) -> None:
        reference, shares, match = struct.unpack_from(">QIQ", message, 11)
        is_printable = message[:1] == b"E" or message[31:32] == b"Y"
        assert is_printable or message[31:32] == b"N"
        assert not is_printable or self._is_trading(locate)
        order = self.orders[reference]
        best = self._best(locate, order.side)
        assert order.price == best, "not the best price of its side"
        if is_printable:
            self.volume += shares
        self._match(match, locate, is_printable)
        self._reduce(reference, locate, shares)

    _take_C = _take_E

    def _take_X(self, message: bytes, locate: int) -> None:
        reference, shares = struct.unpack_from(">QI", message, 11)
        assert shares < self.orders[reference].shares, "a cancel must leave a remainder"
        self._reduce(reference, locate, shares)

    def _take_D(self, message: bytes, locate: int) -> None:
        (reference,) = struct.unpack_from(">Q", message, 11)
        self._reduce(reference, locate, self.orders[reference].shares)

    def _take_U(self, message: bytes, locate: int) -> None:
        old, new, shares, price = struct.unpack_from(">QQII", message, 11)
        side = self.orders[old].side
        self._reduce(old, locate, self.orders[old].shares)
        self._enter(new, locate, side, shares, price)

    def _take_P(self, message: bytes, locate: int) -> None:
        shares, price = struct.unpack_from(">I8xI", message, 20)
        assert shares > 0
        assert price > 0
        assert self._is_trading(locate)
        self.volume += shares
        self._match(struct.unpack_from(">Q", message, 36)[0], locate, True)

    def _take_Q(self, message: bytes, locate: int) -> None:
        (shares,) = struct.unpack_from(">Q", message, 11)
        assert chr(message[39]) in "OCHI"
        self.volume += shares
        self._match(struct.unpack_from(">Q", message, 31)[0], locate, False)

    def _take_B(self, message: bytes, locate: int) -> None:
        (match,) = struct.unpack_from(">Q", message, 11)
        assert self.matches.pop(match) == locate, "not a trade that can be broken"

    def _is_trading(self, locate: int) -> bool:
        return self.states[locate] == "T" and locate not in self.stopped

    def _match(self, match: int, locate: int, may_break: bool) -> None:
        assert match not in self.matches
        if may_break:
            self.matches[match] = locate

    def _best(self, locate: int, side: str) -> int | None:
        prices = self.levels.get((locate, side))
        return None if not prices else max(prices) if side == "B" else min(prices)

    def _enter(self, reference: int, locate: int, side: str, shares: int, price: int) -> None:
        assert side in "BS"
        assert reference not in self.orders
        assert shares > 0
        assert price > 0
        self.orders[reference] = Order(locate, side, price, shares)
        level = self.levels.setdefault((locate, side), {})
        level[price] = level.get(price, 0) + shares
        other = self._best(locate, "S" if side == "B" else "B")
        if self.is_checking_crossed and other is not None:
            assert price < other if side == "B" else price > other, "the book is crossed"

    def _reduce(self, reference: int, locate: int, shares: int) -> None:
        order = self.orders[reference]
        assert order.locate == locate
        assert 0 < shares <= order.shares, "more than the order has"
        order.shares -= shares
        level = self.levels[locate, order.side]
        level[order.price] -= shares
        if level[order.price] == 0:
            del level[order.price]
        if order.shares == 0:
            del self.orders[reference]
