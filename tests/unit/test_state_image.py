"""Images of a conversion state: hostile bytes, limits, concurrent images, and differences between two states."""

import random
import struct

import pytest

from penstock.base.crc32c import crc32c
from penstock.base.errors import LimitError, LocalProtocolError, StateImageError
from penstock.convert.books._units import IMAGES_MAX, UNIT_INSTRUMENTS
from penstock.convert.books.state import CHUNK_SIZE_MIN, ConversionState, Side, StateImage, StateLimits

LIMITS = StateLimits(instruments=64, orders=1000, levels=100, trades=50)


def filled(limits: StateLimits = LIMITS) -> ConversionState:
    state = ConversionState(limits, seed=5)
    for number, symbol in enumerate(["AAPL", "MSFT", "IBM"]):
        state.instrument(symbol, 10 + number)
    state.refer(0, venue="XNAS", round_lot=100, upper_limit=10**10)
    state.set_session("20240102", 1_704_153_600 * 10**9, 3)
    for reference in range(200):
        state.add_order(reference, reference % 3, reference % 2, (100 + reference % 7) * 10**8, 10 + reference)
    for trade in range(10):
        state.add_trade(trade % 2, trade, (100 + trade) * 10**8, 5, event_ns=trade)
    state.break_trade(0, 4)
    return state


def fetch(image: StateImage, size_max: int = 1000) -> list[bytes]:
    return list(iter(lambda: image.chunk(size_max), b""))


def sealed(chunk: bytes) -> bytes:
    """A chunk with a matching checksum, whatever its content."""
    return chunk[:12] + struct.pack("<I", crc32c(chunk[16:], crc32c(chunk[:12]))) + chunk[16:]


def of_body(body: bytes, instruments: int, digest: int) -> bytes:
    return sealed(struct.pack("<4sBBHIIIIQ", b"PSIM", 2, 3, 0, len(body), 0, 0, instruments, digest) + body)


def assert_refused(chunks: list[bytes], match: str | None = None, state: ConversionState | None = None) -> None:
    state = state or filled()
    before = state.unit_digests().tolist(), state.digest, state.book("AAPL")
    with pytest.raises(StateImageError, match=match):
        state.install(chunks)
    assert (state.unit_digests().tolist(), state.digest, state.book("AAPL")) == before


def test_an_installed_image_equals_the_state() -> None:
    state, target = filled(), ConversionState(LIMITS)
    target.install(fetch(state.begin_image()))
    assert target.differences(state) == []
    assert target.digest == state.digest
    assert target.instruments() == state.instruments()
    assert target.session() == ("20240102", 1_704_153_600 * 10**9, 3)
    assert (target.order_count, target.level_count, target.trade_count) == (
        state.order_count, state.level_count, state.trade_count
    )  # fmt: skip
    assert target.find("IBM") == 2
    assert target.find_locate(11) == 1
    for each in (state, target):
        each.break_trade(1, 9)
        each.replace_order(7, 1000, 5, 10**8)
        each.new_day()
    assert target.digest == state.digest


def test_differences_are_reported_value_by_value() -> None:
    ours, theirs = filled(), filled()
    assert ours.differences(theirs) == []
    theirs.execute_order(6, 3)
    theirs.add_order(900, 0, Side.ASK, 205 * 10**8, 5)
    theirs.add_trade(1, 77, 5 * 10**8, 1)
    ours.set_status(2, 4)
    said = [str(each) for each in ours.differences(theirs)]
    assert sorted(said) == sorted(
        [
            "order 6 shares: 16 here, 13 there",
            "order 900: nothing here, instrument=AAPL side=ask price=205.00000000 shares=5 participant=0 there",
            "AAPL bid 106.00000000 size: 500 here, 497 there",
            "AAPL ask 205.00000000: nothing here, size=5 count=1 there",
            "MSFT low: 101.00000000 here, 5.00000000 there",
            "MSFT last: 109.00000000 here, 5.00000000 there",
            "MSFT last_size: 5 here, 1 there",
            "MSFT volume: 25 here, 26 there",
            "MSFT trade_count: 5 here, 6 there",
            "MSFT turnover: 2625.00000000 here, 2630.00000000 there",
            "MSFT trade 5: nothing here, trade_id=77 price=5.00000000 size=1 event_ns=0 conditions=0 there",
            "IBM status: 4 here, 0 there",
        ]
    )
    assert len(ours.differences(theirs, count_max=3)) == 3


def test_every_truncation_and_every_damaged_byte_is_refused() -> None:
    (chunk,) = fetch(filled().begin_image(filled().unit_digests()[:-7]), 100_000)
    target = filled()
    for size in range(len(chunk)):
        assert_refused([chunk[:size]], state=target)
    for at in range(len(chunk)):
        assert_refused([chunk[:at] + bytes([chunk[at] ^ 0x41]) + chunk[at + 1 :]], state=target)


def test_chunks_must_be_complete_in_order_and_of_one_image() -> None:
    chunks = fetch(filled().begin_image())
    assert len(chunks) > 5
    assert_refused([], "missing")
    assert_refused(chunks[:-1], "last chunk is missing")
    assert_refused(chunks[1:], "unexpected chunk number 1")
    assert_refused([chunks[0], chunks[2]], "unexpected chunk number 2")
    assert_refused([*chunks, chunks[0]], "unexpected data after")
    other = filled()
    other.delete_order(1)
    assert_refused([*chunks[:2], *fetch(other.begin_image())[2:]], "another image")


def test_damage_with_a_valid_checksum_is_refused_or_has_no_effect() -> None:
    """Whole units may be missing where the target has them already."""
    source, target = filled(), ConversionState(LIMITS)
    (chunk,) = fetch(source.begin_image(), 100_000)
    refusals = 0
    for seed in range(1000):
        try:
            target.install([of_body(damaged(chunk[32:], random.Random(seed)), 3, source.digest)])
        except StateImageError:
            refusals += 1
            assert target.digest == ConversionState(LIMITS).digest
        else:
            assert target.differences(source) == []
            target = ConversionState(LIMITS)
    assert refusals > 900


def damaged(intact: bytes, source: random.Random) -> bytes:
    body = bytearray(intact)
    for _ in range(source.randint(1, 4)):
        at = source.randrange(len(body))
        kind = source.randrange(4)
        if kind == 0:
            body[at] ^= 1 << source.randrange(8)
        elif kind == 1:
            body[at : at + 8] = struct.pack("<Q", source.choice([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
        elif kind == 2:
            del body[at : at + source.choice([1, 24, 32, 40])]
        else:
            body[at:at] = body[at : at + source.choice([24, 32, 40])]
    return bytes(body) if body != intact else bytes(body) + b"more"


def unit(number: int, rows: bytes, digest: int) -> bytes:
    return struct.pack("<IIQQ", number, 0, len(rows), digest) + rows


def test_impossible_rows_are_refused_even_with_their_digest() -> None:
    """A hostile source with valid digests."""
    from oracles.conversion import ORDER, mix

    reference = next(each for each in range(10_000) if each * 0x9E3779B97F4A7C15 % 2**64 >> 54 == 0)
    good = struct.pack("<QqQII", reference, 10**8, 5, 1, 0)
    cases = {
        "is invalid": struct.pack("<QqQII", reference, 10**8, 0, 1, 0),
        "no instrument": struct.pack("<QqQII", reference, 10**8, 5, 6, 0),
        "duplicate order": good + good,
        "an order is truncated": good[:-1],
    }
    for match, rows in cases.items():
        digest = sum(
            mix(ORDER, 0, list(struct.unpack("<4Q", rows[at : at + 32]))) for at in range(0, len(rows) - 31, 32)
        )
        assert_refused([of_body(unit(1, rows, digest % 2**64), 3, 0)], match)
    assert_refused([of_body(unit(2, good, 0), 3, 0)], "is invalid")
    assert_refused([of_body(unit(UNIT_INSTRUMENTS + 6, b"", 0), 3, 0)], "unexpected unit")
    assert_refused([of_body(unit(2, b"", 0) + unit(1, b"", 0), 3, 0)], "unexpected unit")
    assert_refused([of_body(struct.pack("<IIQQ", 1, 0, 2**63, 0), 3, 0)], "truncated")
    assert_refused([of_body(b"", 2**31, 0)], "no room for 2147483648 instruments")
    assert_refused([of_body(b"", 4, 0)], "neither in the image nor in the state")


def test_a_state_that_is_too_small_refuses_the_image() -> None:
    chunks = fetch(filled().begin_image())
    for limits in (
        StateLimits(instruments=2, orders=1000, levels=100, trades=50),
        StateLimits(instruments=64, orders=199, levels=100, trades=50),
        StateLimits(instruments=64, orders=1000, levels=20, trades=50),
        StateLimits(instruments=64, orders=1000, levels=100, trades=9),
    ):
        target = ConversionState(limits)
        with pytest.raises(StateImageError, match=r"no room|exceeds the limit"):
            target.install(chunks)
        assert target.digest == ConversionState(limits).digest


def test_a_difference_image_does_not_fit_another_state() -> None:
    state, target = filled(), filled()
    state.add_order(900, 0, Side.BID, 10**8, 5)
    chunks = fetch(state.begin_image(target.unit_digests()))
    target.delete_order(1)
    assert_refused(chunks, "digest of the resulting state is wrong", target)


def test_a_state_that_is_replaced_invalidates_its_images() -> None:
    state = filled()
    for change in (state.new_day, state.clear_book, lambda: state.install(fetch(filled().begin_image()))):
        image = state.begin_image()
        image.chunk(1000)
        change()
        with pytest.raises(StateImageError, match="whole state was replaced"):
            image.chunk(1000)
    assert fetch(state.begin_image())


def test_concurrent_images_each_have_their_own_moment() -> None:
    state = filled()
    images, digests = [], []
    for number in range(IMAGES_MAX):
        images.append(state.begin_image())
        digests.append(state.digest)
        state.execute_order(number, 1)
        state.add_trade(0, 100 + number, 10**8, 1)
        if number % 3 == 0:
            state.break_trade(0, 100 + number)
    with pytest.raises(LimitError, match="16 images"):
        state.begin_image()
    for number in (3, 0, 15, 7):
        target = ConversionState(LIMITS)
        target.install(fetch(images[number], 200 + 100 * number))
        assert target.digest == digests[number]
    del images
    assert fetch(state.begin_image())


def test_a_log_that_grows_during_the_image_is_sent_seamlessly() -> None:
    state = ConversionState()
    state.instrument("AAPL")
    for number in range(500):
        state.add_trade(0, number, 10**8 + number, 1)
    image, digest = state.begin_image(), state.digest
    chunks = [image.chunk(30_000)]  # in the middle of the log
    for number in range(500, 600):
        state.add_trade(0, number, 10**8 + number, 1)
    assert image.copies == 0, "the instrument was sent already, and the log only grows"
    chunks.append(image.chunk(5000))
    state.break_trade(0, 3)
    state.break_trade(0, 450)
    target = ConversionState()
    target.install(chunks + fetch(image, 2000))
    assert target.digest == digest
    assert target.statistics("AAPL").trade_count == 500


def test_a_chunk_has_a_minimum_size() -> None:
    with pytest.raises(LocalProtocolError, match="chunk size"):
        filled().begin_image().chunk(CHUNK_SIZE_MIN - 1)
    assert len(fetch(filled().begin_image(), CHUNK_SIZE_MIN)) > 100
