import random

import pytest

from penstock.base.crc32c import crc32c, crc32c_without_hardware


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_published_values_match(data: bytes, expected: int) -> None:
    assert crc32c(data) == crc32c_without_hardware(data) == expected


def test_hardware_equals_table_at_every_size_up_to_two_rounds() -> None:
    data = random.Random(1).randbytes(10_000)
    for size in (*range(400), *range(3_060, 3_240), *range(6_140, 6_300), 10_000):
        assert crc32c(data[:size]) == crc32c_without_hardware(data[:size])


def test_a_checksum_continues_from_a_partial_value() -> None:
    data = random.Random(2).randbytes(2_000)
    for cut in (0, 1, 12, 16, 1_999):
        assert crc32c(data[cut:], crc32c(data[:cut])) == crc32c(data)
