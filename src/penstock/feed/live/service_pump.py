"""Passes published packets from the data thread to the stream service, in the loop's thread."""

import asyncio

from penstock.base.counters import Counters
from penstock.base.log import logger
from penstock.feed.core.service.published import Unpacker
from penstock.feed.live._tap import Tap
from penstock.feed.live.subscriber_server import SubscriberServer

TAKES_PER_TURN = 4

log = logger("feed.service")


class ServicePump:
    """Runs from start() to stop(). Without a live subscriber the pump sleeps and skips published packets, so that
    the data thread does not wake it for every message. The first live subscriber gets all packets from its opening
    on."""

    def __init__(self, tap: Tap, server: SubscriberServer, counters: Counters) -> None:
        self._tap = tap
        self._server = server
        self._counters = counters
        self._unpacker = Unpacker()
        self._loop = asyncio.get_running_loop()
        self._turn: asyncio.Handle | None = None
        server.on_first_live = self._begin

    def start(self) -> None:
        self._loop.add_reader(self._tap.fileno(), self._on_ready)
        self._on_ready()

    def stop(self) -> None:
        self._server.on_first_live = None
        self._loop.remove_reader(self._tap.fileno())
        if self._turn is not None:
            self._turn.cancel()

    def _begin(self) -> None:
        self._tap.skip_to_newest()
        self._tap.clear()
        if self._turn is None:  # not now: the subscriber is being opened
            self._turn = self._loop.call_soon(self._take_turn)

    def _on_ready(self) -> None:
        self._tap.clear()
        if self._turn is None:
            self._take_turn()

    def _take_turn(self) -> None:
        """Do a bounded piece of work, so that other tasks of this loop get their turn."""
        self._turn = None
        if not self._server.service.has_live:
            return
        for _ in range(TAKES_PER_TURN):
            if not self._take():
                break
        if not self._tap.arm():
            self._turn = self._loop.call_soon(self._take_turn)

    def _take(self) -> bool:
        taken = self._tap.take()
        if taken is None:
            return False
        for lost, batch in self._unpacker.unpack_taken(*taken):
            if lost:
                log.error("service_overrun", packets=lost)
                self._counters.add("packets_overrun", lost)
                self._server.overrun()
            self._server.publish(batch)
        return True
