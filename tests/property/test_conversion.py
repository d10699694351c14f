"""The compiled converter against a plain Python converter, on generated feeds."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracles.converter import OracleConverter
from penstock.convert import Converter, ConverterTable, SourceBatch
from penstock.feed.core.play.generator import GeneratorConfig, ItchGenerator

REFERENCES = st.integers(0, 12)
SHARES = st.integers(0, 6)
PRICES = st.sampled_from([0, 1, 99_900, 100_000, 100_100, 2**32 - 1])
LETTERS = st.sampled_from([b"B", b"S", b"N", b"Y", b"H", b"T", b"O", b"C", b"X", b" ", b"\0", b"0", b"1"])
SYMBOLS = st.sampled_from([b"AAPL    ", b"BRK.A   ", b"Z*      ", b"        "])
TEXTS = st.sampled_from([b"T1  ", b"    ", b"LUDP", b"\xff\0\0\0"])
TIMES = st.integers(0, 2**47)


def u(size: int, values: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return values.map(lambda value: value.to_bytes(size, "big"))


def joined(*parts: st.SearchStrategy[bytes] | bytes) -> st.SearchStrategy[bytes]:
    made = [st.just(part) if isinstance(part, bytes) else part for part in parts]
    return st.tuples(*made).map(b"".join)


def itch(kind: bytes, *parts: st.SearchStrategy[bytes] | bytes) -> st.SearchStrategy[bytes]:
    return joined(kind, u(2, st.integers(1, 3)), b"\0\0", u(6, TIMES), *parts)


ITCH_MESSAGES = st.one_of(
    itch(b"S", LETTERS),
    itch(b"R", SYMBOLS, b"QN", u(4, SHARES), b"NCZ PNN1N", u(4, SHARES), b"N"),
    itch(b"H", SYMBOLS, LETTERS, b" ", TEXTS),
    itch(b"h", SYMBOLS, b"Q", LETTERS),
    itch(b"Y", SYMBOLS, LETTERS),
    itch(b"J", SYMBOLS, u(4, PRICES), u(4, PRICES), u(4, PRICES), u(4, SHARES)),
    itch(b"A", u(8, REFERENCES), LETTERS, u(4, SHARES), SYMBOLS, u(4, PRICES)),
    itch(b"A", u(8, REFERENCES), st.sampled_from([b"B", b"S"]), u(4, SHARES), SYMBOLS, u(4, PRICES)),
    itch(b"F", u(8, REFERENCES), st.sampled_from([b"B", b"S"]), u(4, SHARES), SYMBOLS, u(4, PRICES), TEXTS),
    itch(b"E", u(8, REFERENCES), u(4, SHARES), u(8, REFERENCES)),
    itch(b"C", u(8, REFERENCES), u(4, SHARES), u(8, REFERENCES), LETTERS, u(4, PRICES)),
    itch(b"X", u(8, REFERENCES), u(4, SHARES)),
    itch(b"D", u(8, REFERENCES)),
    itch(b"U", u(8, REFERENCES), u(8, REFERENCES), u(4, SHARES), u(4, PRICES)),
    itch(b"P", u(8, REFERENCES), b"B", u(4, SHARES), SYMBOLS, u(4, PRICES), u(8, REFERENCES)),
    itch(b"Q", u(8, st.sampled_from([0, 5, 2**63])), SYMBOLS, u(4, PRICES), u(8, REFERENCES), LETTERS),
    itch(b"B", u(8, REFERENCES)),
    st.binary(max_size=50),
)

IEX_PRICES = st.sampled_from([0, 1, 99_900, 100_000, 100_100, -5, 2**62, -(2**63)])
IEX_SYMBOLS = st.sampled_from([b"AAPL    ", b"BRK.A   ", b"ZXZZT   ", b"        "])


def iex(kind: bytes, code: str, *values: st.SearchStrategy[object]) -> st.SearchStrategy[bytes]:
    """Every message begins with its type, a byte, the time and the symbol."""
    first = (st.integers(0, 255), st.integers(0, 2**62), IEX_SYMBOLS)
    return st.tuples(*first, *values).map(lambda given: kind + struct.pack(f"<Bq8s{code}", *given))


SIZES = st.sampled_from([0, 1, 100, 2**32 - 1])
IEX_COMMON = [
    iex(b"D", "IqB", SIZES, IEX_PRICES, st.integers(0, 255)),
    iex(b"H", "4s", TEXTS),
    st.tuples(st.sampled_from(b"HOPT"), st.just(5), IEX_SYMBOLS).map(
        lambda given: b"H" + struct.pack("<Bq8s4s", *given, b"    ")
    ),
    st.tuples(st.sampled_from(b"ON"), st.just(5), IEX_SYMBOLS).map(lambda given: b"O" + struct.pack("<Bq8s", *given)),
    iex(b"P", "1s", st.just(b" ")),
    iex(b"I", ""),
    iex(b"T", "Iqq", SIZES, IEX_PRICES, st.integers(-1, 5)),
    iex(b"B", "Iqq", SIZES, IEX_PRICES, st.integers(-1, 5)),
    st.binary(max_size=50),
]
DEEP_MESSAGES = st.one_of(*IEX_COMMON, iex(b"8", "Iq", SIZES, IEX_PRICES), iex(b"5", "Iq", SIZES, IEX_PRICES))
TOPS_MESSAGES = st.one_of(*IEX_COMMON, iex(b"Q", "IqqI", SIZES, IEX_PRICES, IEX_PRICES, SIZES))

NUMBERS = st.sampled_from([b"", b"5", b"100.25", b"-3", b" 7 ", b"1e5", b"99999999999999999999", b"0.000000001", b".5"])
CSV_MESSAGES = st.one_of(
    st.tuples(
        st.sampled_from([b"trade", b"quote", b"define", b"x"]),
        st.sampled_from([b"1700000000000000000", b"", b"x"]),
        st.sampled_from([b"AAPL", b"BTC-PERPETUAL", b"", b"FAR.TOO.LONG.A.SYMBOL"]),
        st.lists(NUMBERS, min_size=2, max_size=5),
    ).map(lambda given: b",".join([*given[:3], *given[3]])),
    st.binary(max_size=50),
)

FEEDS = {
    "itch": ITCH_MESSAGES,
    "iex-deep": DEEP_MESSAGES,
    "iex-tops": TOPS_MESSAGES,
    "csv-ticks": CSV_MESSAGES,
}
TABLES = {name: ConverterTable.load(name) for name in FEEDS}
PLANS = {name: table.compile() for name, table in TABLES.items()}


def assert_alike(name: str, messages: list[bytes]) -> None:
    oracle = OracleConverter(TABLES[name].document, TABLES[name].format, 0)
    converter = Converter(PLANS[name], 1)
    expected = []
    for sequence, message in enumerate(messages, start=1):
        expected += oracle.convert(sequence, message, receive_ns=9)
    converted = converter.convert(SourceBatch.from_messages(messages, 1, receive_ns=9))
    found = [
        (topic, origin.source_sequence, origin.message_index, model, record)
        for topic, origin, model, record in converted
    ]
    assert found == expected
    assert converter.counters["source_messages_malformed"] == oracle.malformed
    unmatched = converter.counters.by_cause("source_messages_unmatched")
    assert sum(count for cause, count in unmatched.items() if cause not in ("excess", "decimals")) == oracle.unmatched


@pytest.mark.spec("FEED-3")
@pytest.mark.parametrize("name", FEEDS)
@given(data=st.data())
def test_the_compiled_converter_does_what_the_plain_one_does(name: str, data: st.DataObject) -> None:
    assert_alike(name, data.draw(st.lists(FEEDS[name], max_size=40)))


def test_a_generated_day_is_converted_alike() -> None:
    assert_alike("itch", list(ItchGenerator(GeneratorConfig(seed=11, symbols=10, messages=2_000))))


@given(messages=st.lists(ITCH_MESSAGES, max_size=60), cuts=st.lists(st.integers(1, 10), min_size=1))
def test_batches_make_no_difference(messages: list[bytes], cuts: list[int]) -> None:
    whole, parts = (Converter(PLANS["itch"], 1, checkpoint_interval=4) for _ in range(2))
    expected = list(whole.convert(SourceBatch.from_messages(messages, 1)))
    found = []
    at = 0
    while at < len(messages):
        size = cuts[at % len(cuts)]
        found += list(parts.convert(SourceBatch.from_messages(messages[at : at + size], at + 1)))
        at += size
    assert found == expected
    assert parts.take_checkpoints() == whole.take_checkpoints()
    assert parts.state.digest == whole.state.digest
