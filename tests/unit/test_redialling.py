"""Attempts to connect: their pauses, what is reported of them, and how they end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.base.backoff import Backoff, BackoffPolicy
from penstock.base.errors import ConnectionLostError, JournalGoneError, PenstockError, UnreachableError
from penstock.net.live.dialling import Redialling, redial
from penstock.sim.randomness import SeededRandomness

POLICY = BackoffPolicy(base_ms=1, jitter=0.0, max_ms=4, absent_max_ms=4)


class Reports:
    """Ends the attempts with the last error."""

    def __init__(self, count: int) -> None:
        self.errors: list[tuple[str, bool]] = []
        self._count = count

    def __call__(self, error: PenstockError, is_news: bool) -> None:
        self.errors.append((error.code, is_news))
        if len(self.errors) == self._count:
            raise error


def test_an_error_is_logged_unless_the_previous_attempt_had_the_same() -> None:
    failures = [
        UnreachableError("one"),
        UnreachableError("two"),
        None,
        UnreachableError("three"),
        ConnectionLostError(""),
    ]
    reports = Reports(4)

    async def connect() -> bool:
        failure = failures.pop(0)
        if failure is not None:
            raise failure
        return False

    with pytest.raises(ConnectionLostError):
        asyncio.run(redial(connect, Backoff(SeededRandomness(1), POLICY), reports))
    unreachable = UnreachableError.code
    assert reports.errors == [
        (unreachable, True),
        (unreachable, False),
        (unreachable, True),
        (ConnectionLostError.code, True),
    ]


def test_a_connection_that_was_in_use_resets_the_back_off() -> None:
    pauses: list[float] = []

    class Growing(Backoff):
        def next_seconds(self, error: Exception | None = None) -> float:
            pauses.append(super().next_seconds(error))
            return 0.0

    backoff, reports = Growing(SeededRandomness(1), POLICY), Reports(5)

    async def main() -> None:
        count = 0
        async for attempt in Redialling(backoff, reports):
            with attempt:
                count += 1
                if count == 4:
                    attempt.succeeded()
                raise ConnectionLostError("lost")

    with pytest.raises(ConnectionLostError):
        asyncio.run(main())
    assert pauses == [0.001, 0.002, 0.004, 0.001]
    assert [is_news for _, is_news in reports.errors] == [True, False, False, True, False]


def test_other_errors_end_the_attempts_and_so_does_closing_the_generator() -> None:
    async def numbers(reports: Reports) -> AsyncIterator[int]:
        async for attempt in Redialling(Backoff(SeededRandomness(1), POLICY), reports):
            with attempt:
                yield 1
                raise JournalGoneError("gone", first_sequence=5)

    async def main() -> None:
        reports = Reports(2)
        assert [number async for number in _until(JournalGoneError, numbers(reports))] == [1, 1]
        assert len(reports.errors) == 2
        left = numbers(reports)
        assert await anext(left) == 1
        await left.aclose()  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="a mistake"):
            await redial(_fail, Backoff(SeededRandomness(1), POLICY), reports)
        assert len(reports.errors) == 2

    asyncio.run(main())


async def _until(kind: type[PenstockError], numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    try:
        async for number in numbers:
            yield number
    except kind:
        return


async def _fail() -> bool:
    raise ValueError("a mistake")
