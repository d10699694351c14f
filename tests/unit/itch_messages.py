"""One example of each message type of NASDAQ TotalView-ITCH 5.0."""


def head(kind: bytes, locate: int = 1, time_ns: int = 34_200_000_000_000) -> bytes:
    return kind + locate.to_bytes(2, "big") + b"\0\0" + time_ns.to_bytes(6, "big")


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


def directory(locate: int = 1, stock: bytes = b"AAPL", lot: int = 100) -> bytes:
    return head(b"R", locate) + stock.ljust(8) + b"QN" + number(lot, 4) + b"NCZ PNN1N" + number(0, 4) + b"N"


def add(reference: int, side: bytes, shares: int, price: int, locate: int = 1, stock: bytes = b"AAPL") -> bytes:
    return head(b"A", locate) + number(reference, 8) + side + number(shares, 4) + stock.ljust(8) + number(price, 4)


def executed(reference: int, shares: int, match: int) -> bytes:
    return head(b"E") + number(reference, 8) + number(shares, 4) + number(match, 8)


def executed_at(reference: int, shares: int, match: int, printable: bytes, price: int) -> bytes:
    return head(b"C") + executed(reference, shares, match)[11:] + printable + number(price, 4)


def trade(shares: int, price: int, match: int, locate: int = 1, stock: bytes = b"AAPL") -> bytes:
    body = number(0, 8) + b"B" + number(shares, 4) + stock.ljust(8) + number(price, 4) + number(match, 8)
    return head(b"P", locate) + body
