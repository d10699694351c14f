"""The bytes of a state image never change: golden chunks, an independent decoder, and digests of a reference in
Python."""

import struct
from pathlib import Path

from interop.state_decoder import Unit, decode
from oracles.conversion import EXTENDED, LEVEL, ORDER, POSITION, REFERENCE, SESSION, STATISTICS, TRADE, mix
from penstock.convert.books.state import ConversionState, Side, StateLimits

GOLDEN = Path(__file__).parent / "golden_state"
LIMITS = StateLimits(instruments=4, orders=100, levels=100, trades=100)
NONE = -(2**63)


def state() -> ConversionState:
    state = ConversionState(LIMITS, seed=77)
    state.instrument("AAPL", 14)
    state.refer(0, venue="XNAS", round_lot=100, flags=5, upper_limit=200 * 10**8)
    state.set_status(0, 4, 2, "T1")
    state.set_position(0, 34_200_000_000_001, 1234)
    midnight_ns = 1_548_824_400 * 10**9
    state.set_session("20190130A", midnight_ns, 81, midnight_ns + 34_200 * 10**9, midnight_ns + 57_600 * 10**9, 1)
    state.add_order(4711, 0, Side.BID, 163_24000000, 100, participant=0x31544547)
    state.add_order(4712, 0, Side.ASK, 163_34000000, 185)
    state.add_order(4713, 0, Side.ASK, 163_38000000, 50)
    state.add_trade(0, 9001, 163_30000000, 40, event_ns=34_200_000_000_000)
    state.add_trade(0, 9002, 163_31000000, 10, event_ns=34_200_000_000_001, conditions=1)
    state.break_trade(0, 9002)
    state.add_trade(0, 9003, 164_00000000, 7, event_ns=57_700_000_000_000, conditions=2)
    return state


def chunks() -> list[bytes]:
    """In three chunks; without empty shards."""
    image = state().begin_image(ConversionState(LIMITS).unit_digests())
    return list(iter(lambda: image.chunk(260), b""))


def golden() -> list[bytes]:
    return [bytes.fromhex(line) for line in (GOLDEN / "image.hex").read_text().split()]


def test_golden_image() -> None:
    assert chunks() == golden()
    target = ConversionState(LIMITS)
    target.install(golden())
    assert target.differences(state()) == []


def test_the_independent_decoder_reads_it() -> None:
    instruments, digest, units = decode(golden())
    assert (instruments, digest) == (1, state().digest)
    session, *shards, instrument, log = units
    midnight_ns = 1_548_824_400 * 10**9
    assert session.rows == (
        b"20190130A".ljust(16, b"\0"), midnight_ns, 81, midnight_ns + 34_200 * 10**9, midnight_ns + 57_600 * 10**9, 1
    )  # fmt: skip
    assert sorted(row for unit in shards for row in unit.rows) == [
        (4711, 163_24000000, 100, 0, 0x31544547),
        (4712, 163_34000000, 185, 1, 0),
        (4713, 163_38000000, 50, 1, 0),
    ]
    for unit in shards:
        assert all(row[0] * 0x9E3779B97F4A7C15 % 2**64 >> 54 == unit.number - 1 for row in unit.rows)
    reference, statistics, extended, position, bids, asks = instrument.rows
    assert reference == (
        b"AAPL".ljust(16, b"\0"), b"XNAS", 100, 14, 5, 4, 2, 0, b"T1".ljust(8, b"\0"), 200 * 10**8, NONE
    )  # fmt: skip
    price = 163_30000000
    assert statistics == (price, price, price, price, NONE, 40, 40, 40 * price, 0, 1)
    late = 164_00000000
    assert extended == (late, late, late, 7, 7 * late, 0, 1)
    assert position == (34_200_000_000_001, 1234)
    assert bids == [(163_24000000, 100, 1, 0)]
    assert asks == [(163_38000000, 50, 1, 0), (163_34000000, 185, 1, 0)]
    assert log.rows == [
        (9001, price, 40, 34_200_000_000_000, 0, 0),
        (9002, 163_31000000, 10, 34_200_000_000_001, 1 | 1 << 30, 0),
        (9003, late, 7, 57_700_000_000_000, 2, 0),
    ]


def words(layout: str, row: tuple[object, ...]) -> list[int]:
    data = struct.pack(layout, *row)
    return [word for (word,) in struct.iter_unpack("<Q", data)]


def digest_of(unit: Unit) -> int:
    """A unit's digest as the document defines it."""
    if unit.number == 0:
        mixes = [mix(SESSION, 0, words("<16sqQqqQ", unit.rows))]
    elif unit.number <= 1024:
        mixes = [mix(ORDER, 0, words("<QqQII", row)) for row in unit.rows]
    elif unit.number % 2 == 0:
        mixes = [mix(TRADE, at, words("<QqQqII", row)) for at, row in enumerate(unit.rows)]
    else:
        reference, statistics, extended, position, *sides = unit.rows
        mixes = [
            mix(REFERENCE, 0, words("<16s4sIQIBBH8sqq", reference)),
            mix(STATISTICS, 0, words("<5qQQQqQ", statistics)),
            mix(EXTENDED, 0, words("<3qQQqQ", extended)),
            mix(POSITION, 0, words("<qQ", position)),
            *(mix(LEVEL, side, words("<qQII", row)) for side, rows in enumerate(sides) for row in rows),
        ]
    return sum(mixes) % 2**64


def test_the_digests_are_as_documented() -> None:
    _, digest, units = decode(golden())
    assert [unit.digest for unit in units] == [digest_of(unit) for unit in units]
    assert digest == sum(unit.digest for unit in units) % 2**64, "empty units have the digest 0"
