"""Data frames of assured messaging do not change; they are read here from docs/protocol/assured.md alone."""

from pathlib import Path

import pytest

from interop import assured_decoder
from interop.assured_decoder import Decoded
from penstock.assured import _layout
from penstock.assured.frames import (
    Acknowledge,
    Credit,
    Deliver,
    Delivered,
    Frame,
    Publish,
    Published,
    Run,
    Settle,
    decode_frames,
    encode_acknowledge,
    encode_credit,
    encode_deliver,
    encode_publish,
    encode_settle,
)

GOLDEN = Path(__file__).parent / "golden" / "assured"
TIME_NS = 1_700_000_000_000_000_000
PUBLISHER = 0x0123456789ABCDEF

ORDERS = [
    Published(b"orders.new.AAPL", b"buy 100", 4, 1, 7, 2, 30_000),
    Published(b"orders.cancel.AAPL", b"", 9),
    Published(b"orders.new", bytes(range(17)), 0, 2),
]
DELIVERIES = [
    Delivered(3 << 40 | 41, b"orders.new.AAPL", b"buy 100", 4, 0, 7, 2, 0, TIME_NS, PUBLISHER, 5),
    Delivered(3 << 40 | 44, b"orders.cancel.AAPL", b"", 9, 1, 0, 0, 2, TIME_NS + 1, PUBLISHER, 6),
]

FRAMES: dict[str, tuple[bytes, Frame, Decoded]] = {
    "publish": (
        encode_publish(2, 5, ORDERS, transaction=9),
        Publish(2, 9, 5, ORDERS),
        Decoded(1, (2, 9, 0, 5), [
            (b"orders.new.AAPL", b"buy 100", 4, 1, 7, 2, 30_000, 0),
            (b"orders.cancel.AAPL", b"", 9, 0, 0, 0, 0, 0),
            (b"orders.new", bytes(range(17)), 0, 2, 0, 0, 0, 0),
        ]),
    ),
    "acknowledge": (
        encode_acknowledge(2, [(5, 7, 3), (8, 8, 33)]),
        Acknowledge(2, [Run(5, 7, 3), Run(8, 8, 33)]),
        Decoded(2, (2,), [(5, 7, 3), (8, 8, 33)]),
    ),
    "deliver": (
        encode_deliver(4, DELIVERIES),
        Deliver(4, DELIVERIES),
        Decoded(3, (4,), [
            (b"orders.new.AAPL", b"buy 100", 4, 0, 7, 2, 0, 0, 3 << 40 | 41, TIME_NS, PUBLISHER, 5),
            (b"orders.cancel.AAPL", b"", 9, 1, 0, 0, 2, 0, 3 << 40 | 44, TIME_NS + 1, PUBLISHER, 6),
        ]),
    ),
    "settle": (
        encode_settle(4, [(3 << 40 | 41, 3 << 40 | 44, 1), (3 << 40 | 50, 3 << 40 | 50, 3)], transaction=9),
        Settle(4, 9, [Run(3 << 40 | 41, 3 << 40 | 44, 1), Run(3 << 40 | 50, 3 << 40 | 50, 3)]),
        Decoded(4, (4, 9, 0), [(3 << 40 | 41, 3 << 40 | 44, 1), (3 << 40 | 50, 3 << 40 | 50, 3)]),
    ),
    "credit": (encode_credit(4, 2**40), Credit(4, 2**40), Decoded(5, (4, 2**40), [])),
}  # fmt: skip


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


@pytest.mark.parametrize("name", FRAMES)
def test_the_bytes_are_the_golden_ones(name: str) -> None:
    assert FRAMES[name][0].hex() == golden(name).hex()


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_is_what_the_document_says(name: str) -> None:
    assert assured_decoder.decode(golden(name)) == [FRAMES[name][2]]


@pytest.mark.parametrize("name", FRAMES)
def test_a_golden_frame_is_understood(name: str) -> None:
    assert decode_frames(golden(name)) == [FRAMES[name][1]]


def test_the_structs_are_the_bytes() -> None:
    assert _layout.sizes() == {
        "publish": 24, "published": 24, "acknowledge": 8, "run": 24, "deliver": 8, "delivered": 56, "settle": 16,
        "credit": 16,
    }  # fmt: skip
