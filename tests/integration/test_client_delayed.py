"""A client with live and delayed grants: administration server, stream service, and a journal with old records."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock
from admin_kit import RULES, config, credentials, policy_text
from client_kit import STREAM_ID, TERM, ThreadedService, packets, registered_on
from penstock.admin.live.driver import AdminServer
from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Counters
from penstock.feed.config import ServiceConfig
from penstock.feed.core.service.events import Image, MessageReceived, ServiceEvent
from penstock.feed.core.service.service import ServiceIdentity, StreamService
from penstock.feed.live.subscriber_server import SubscriberServer
from penstock.journal import JournalWriter
from penstock.middleware.unicast import Contribution, OpenStream, Position
from penstock.net.udp import free_channel
from penstock.security import PublicKey, Token, TokenVerifier
from penstock.security.live.client import AdminClient
from penstock.wire import MESSAGE_DTYPE
from unit.service_kit import unpacked
from waiting import wait_until

LIVE, DELAYED = "md.us.eq.AAPL.quote", "md.us.eq.IBM.quote"
DELAY_S = 900
PUBLISHER_ID = 11
MIXED = """
[[rule]]
who = ["carol"]
receive = ["md.us.eq.AAPL.>"]

[[rule]]
who = ["carol"]
receive = ["md.us.eq.>"]
delay_minutes = 15
"""


class TardyServer(SubscriberServer):
    """Opens live streams late, images at once."""

    live_after_s = 0.0

    def handle(self, event: ServiceEvent) -> None:
        is_open = isinstance(event, MessageReceived) and isinstance(event.message, OpenStream)
        if is_open and event.message.live and not event.message.delay_s:
            asyncio.get_running_loop().call_later(self.live_after_s, super().handle, event)
        else:
            super().handle(event)


class ServedJournal(ThreadedService):
    """A stream service in a thread of its own: an empty image, and delayed data from a journal."""

    def __init__(self, journal_path: Path, live_after_s: float) -> None:
        super().__init__()
        self.journal_path = journal_path
        self.live_after_s = live_after_s
        self.verifier: TokenVerifier | None = None
        self.published = 0
        self.server: TardyServer

    async def _run(self) -> None:
        identity = ServiceIdentity("adapter-0", PUBLISHER_ID, (STREAM_ID,))
        service = StreamService(identity, self._verify, ServiceConfig(), Counters("service"))
        self.server = TardyServer(service, self)
        self.server.live_after_s = self.live_after_s
        await self.server.start()
        self._ready.set()
        await self._stop.wait()
        await self.server.close()

    def _verify(self, text: str, now_ns: int) -> Token:
        assert self.verifier is not None
        return self.verifier.verify(text, now_ns)

    async def take_image(self) -> Image:
        nothing, rows = numpy.empty(0, numpy.uint8), numpy.empty(0, MESSAGE_DTYPE)
        return Image(nothing, nothing, rows, [Position(STREAM_ID, TERM, self.published)], 1)

    def take_contribution(self, stream: str, first_sequence: int, messages: list[Contribution]) -> Any:
        raise NotImplementedError

    def publish(self, topic: str, number: int) -> None:
        batch = unpacked(packets(topic, [number], publisher_id=PUBLISHER_ID, first=number))

        def publish() -> None:
            self.published = number
            self.server.publish(batch)

        self._loop.call_soon_threadsafe(publish)


@pytest.mark.spec("ADM-2", "SUB-4", "SUB-5")
@pytest.mark.parametrize("live_after_s", [0.0, 0.3])
def test_a_client_gets_live_what_is_granted_live_and_the_rest_exactly_as_late_as_granted(
    tmp_path: Path, live_after_s: float
) -> None:
    rules = RULES.replace('[[rule]]\nwho = ["carol"]\nreceive = ["md.us.eq.*.quote"]\n', MIXED)
    (tmp_path / "policy.toml").write_text(policy_text(rules))
    with (
        JournalWriter.open(tmp_path / "journal") as journal,
        ServedJournal(tmp_path / "journal", live_after_s) as served,
        AdminServer(config(tmp_path)) as admin,
        AdminClient.connect(admin.url, credentials("feed")) as feed,
        penstock.connect(admin.url, credentials=credentials("carol")) as carol,
    ):
        registered = feed.register(registered_on(free_channel(), PUBLISHER_ID, service_port=served.server.port))
        served.verifier = TokenVerifier([PublicKey.parse(text) for text in registered.token_keys])
        subscription = carol.subscribe("md.>", image=True, transport="tcp")
        ages_s: list[float] = []
        seen: dict[str, list[int]] = {LIVE: [], DELAYED: []}
        recorded: dict[int, int] = {}
        number = 0

        def is_enough() -> bool:
            nonlocal number
            for topic in (LIVE, DELAYED):
                number += 1
                recorded[number] = time.time_ns() - DELAY_S * NS_PER_SECOND + NS_PER_SECOND // 10
                journal.append(packets(topic, [number], publisher_id=PUBLISHER_ID, first=number)[0], recorded[number])
                served.publish(topic, number)
            journal.commit()
            while (message := subscription.next(0.01)) is not None:
                seen[message.topic].append(message.seq)
                if message.topic == DELAYED:
                    ages_s.append((time.time_ns() - recorded[message.seq]) / NS_PER_SECOND)
            return min(map(len, seen.values())) >= 20

        wait_until(is_enough, "twenty messages of each kind")
        statistics = subscription.statistics()
        subscription.close()
    for numbers, kind in ((seen[LIVE], 1), (seen[DELAYED], 0)):
        assert numbers == [each for each in range(numbers[0], numbers[-1] + 1) if each % 2 == kind]
    assert min(ages_s) >= DELAY_S
    assert (statistics.refused, statistics.lost) == (0, 0)
