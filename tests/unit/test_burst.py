"""Burst decides which messages wait for further messages; the time is an argument."""

import pytest

from penstock.net._burst import BACK_TO_BACK_NS, JOINED_AFTER, Burst

LINGER_NS = 50_000
CALL_NS = 300


def call(burst: Burst, now_ns: int) -> bool:
    """A call that publishes and lasts CALL_NS; True if its message may wait."""
    waits = burst.takes(now_ns)
    burst.returns(now_ns + CALL_NS)
    return waits


def calls(burst: Burst, now_ns: int, count: int, gap_ns: int) -> list[bool]:
    return [call(burst, now_ns + index * (CALL_NS + gap_ns)) for index in range(count)]


def test_the_first_message_never_waits() -> None:
    for now_ns in (0, 1, 10**18):
        assert not Burst(LINGER_NS).takes(now_ns)


def test_messages_wait_after_several_calls_back_to_back() -> None:
    waits = calls(Burst(LINGER_NS), 10**9, 2 * JOINED_AFTER, BACK_TO_BACK_NS)
    assert waits == [False] * (1 + JOINED_AFTER) + [True] * (JOINED_AFTER - 1)


def test_other_work_between_two_messages_ends_the_burst() -> None:
    assert not any(calls(Burst(LINGER_NS), 10**9, 1_000, BACK_TO_BACK_NS + 1))


def test_a_pause_ends_the_burst() -> None:
    burst = Burst(LINGER_NS)
    assert calls(burst, 0, 100, 0)[-1]
    later_ns = 100 * CALL_NS + BACK_TO_BACK_NS + 1
    assert calls(burst, later_ns, 2 + JOINED_AFTER, 0) == [False] * (1 + JOINED_AFTER) + [True]


def test_without_linger_no_message_waits() -> None:
    assert not any(calls(Burst(0), 0, 100, 0))


@pytest.mark.parametrize("start_ns", [0, 2**61])
def test_a_clock_that_stands_still_counts_as_back_to_back(start_ns: int) -> None:
    burst = Burst(LINGER_NS)
    burst.returns(start_ns)
    assert [burst.takes(start_ns) for _ in range(JOINED_AFTER + 1)] == [False] * JOINED_AFTER + [True]
