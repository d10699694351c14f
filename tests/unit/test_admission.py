"""Admission to a server: the time limit of the first message, refusals, their counters, and the end of rights."""

import asyncio

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.net.live.admission import Admission, watch_rights
from penstock.security.core.refusal import RefusalError, Refusals

PATIENCE_SECONDS = 60


class Server:
    """Admission on transports that have names and record the last messages sent on them."""

    def __init__(self, *, cause: str = "") -> None:
        self.ended: list[tuple[str, tuple[str, str]]] = []
        self.is_ended = asyncio.Event()
        self.counters = Counters("test")
        self.admission: Admission[str, tuple[str, str]] = Admission(
            Refusals(lambda code, text, number: (code, text)),
            self._end,
            lambda what: RefusalError("late", what),
            party="caller",
            counter="requests_refused",
            counters=self.counters,
            log=logger("test"),
            cause=cause,
        )

    def _end(self, transport: str, last: tuple[str, str]) -> None:
        self.ended.append((transport, last))
        self.is_ended.set()


def test_a_peer_without_a_first_message_in_time_is_refused() -> None:
    async def main() -> None:
        server = Server()
        server.admission.expect("silent", 0.01, address="here")
        server.admission.expect("quick", 3_600)
        server.admission.arrived("quick")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.is_ended.wait()
        assert server.ended == [("silent", ("late", "no login within 0.01 s"))]
        assert server.counters.by_cause("requests_refused") == {"late": 1}
        assert server.admission.expected == set()

    asyncio.run(main())


def test_a_refused_peer_is_no_longer_pending() -> None:
    async def main() -> None:
        server = Server()
        server.admission.expect("forger", 3_600)
        server.admission.refuse("forger", RefusalError("token", "no token"), address="here")
        assert server.admission.expected == set()
        server.admission.end("slow", ("slow", "too slow"))
        assert server.ended == [("forger", ("token", "no token")), ("slow", ("slow", "too slow"))]
        assert server.counters.by_cause("requests_refused") == {"token": 1}

    asyncio.run(main())


def test_refusals_have_one_cause_if_the_server_says_so() -> None:
    async def main() -> None:
        server = Server(cause="authentication")
        server.admission.refuse("forger", PenstockError("no token"))
        assert server.counters.by_cause("requests_refused") == {"authentication": 1}

    asyncio.run(main())


def test_rights_are_checked_until_the_watch_is_cancelled() -> None:
    async def main() -> int:
        is_checked = asyncio.Event()
        times: list[int] = []

        def check(now_ns: int) -> None:
            times.append(now_ns)
            is_checked.set()

        watching = asyncio.ensure_future(watch_rights(check))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await is_checked.wait()
        watching.cancel()
        await asyncio.wait([watching])
        return times[0]

    assert asyncio.run(main()) > 0
