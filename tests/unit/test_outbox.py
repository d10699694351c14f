"""The outbox of a connection: its limits, the policy when full, and the end of a conversation."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.base.errors import ConnectionLostError, RemoteProtocolError
from penstock.net.live.outbox import Outbox, WhenFull, converse


class Connection:
    """Accepts messages while `is_taking` is set."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.is_over = False
        self.is_taking = asyncio.Event()
        self.is_taking.set()

    async def send(self, message: str, /) -> None:
        await self.is_taking.wait()
        if self.is_over:
            raise ConnectionLostError("gone")
        self.sent.append(message)


async def silence() -> None:
    """A peer that sends nothing."""
    await asyncio.Event().wait()


def sent_of(size_max: int | None, when_full: WhenFull, use: Callable[[Outbox[str]], None]) -> tuple[list[str], int]:
    """The messages sent after this use of the outbox and its end, and their total size."""
    total = 0

    def count(size: int) -> None:
        nonlocal total
        total += size

    async def main() -> list[str]:
        connection = Connection()
        outbox: Outbox[str] = Outbox(size_max, when_full, too_slow="too slow", on_sent=count)
        use(outbox)
        outbox.end(None)
        await converse(connection, outbox, silence())
        assert outbox.over.is_set()
        return connection.sent

    return asyncio.run(main()), total


def put(*messages: str) -> Callable[[Outbox[str]], None]:
    def use(outbox: Outbox[str]) -> None:
        for each in messages:
            outbox.put(each, len(each))

    return use


@pytest.mark.parametrize(
    ("size_max", "when_full", "sent"),
    [
        (None, "cut", ["one", "two", "three"]),
        (11, "end", ["one", "two", "three"]),
        (10, "end", ["too slow"]),
        (10, "cut", []),
        (10, "drop_oldest", ["two", "three"]),
        (5, "drop_oldest", ["three"]),
    ],
)
def test_a_full_outbox(size_max: int | None, when_full: WhenFull, sent: list[str]) -> None:
    expected_size = sum(len(each) for each in sent if each != "too slow")
    assert sent_of(size_max, when_full, put("one", "two", "three")) == (sent, expected_size)


def test_messages_are_counted_unless_their_sizes_are_given() -> None:
    def use(outbox: Outbox[str]) -> None:
        for each in ("one", "two", "three"):
            outbox.put(each)
        assert outbox.size == 2

    assert sent_of(2, "drop_oldest", use) == (["two", "three"], 2)


def test_the_last_message_replaces_the_waiting_ones() -> None:
    def use(outbox: Outbox[str]) -> None:
        outbox.put("one")
        outbox.end("goodbye")
        outbox.put("two")
        outbox.end("again")

    assert sent_of(None, "cut", use) == (["goodbye"], 0)


def test_a_cut_does_not_wait_for_a_peer_that_accepts_nothing() -> None:
    async def main() -> list[str]:
        connection = Connection()
        connection.is_taking.clear()
        outbox: Outbox[str] = Outbox(1, "cut")
        async with asyncio.timeout(60):
            conversation = asyncio.ensure_future(converse(connection, outbox, silence()))
            outbox.put("one")
            outbox.put("two")
            await conversation
        return connection.sent

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("error", [RemoteProtocolError("nonsense"), ValueError("a mistake")])
def test_errors_of_the_reader_are_raised(error: Exception) -> None:
    async def read() -> None:
        raise error

    async def main(reader: Callable[[], Awaitable[None]]) -> None:
        await converse(Connection(), Outbox[str](None), reader())  # type: ignore[arg-type]

    with pytest.raises(type(error)):
        asyncio.run(main(read))


def test_a_lost_connection_ends_the_conversation() -> None:
    async def main() -> None:
        connection = Connection()
        connection.is_over = True
        outbox: Outbox[str] = Outbox(None)
        outbox.put("one")
        async with asyncio.timeout(60):
            await converse(connection, outbox, silence())

    asyncio.run(main())
