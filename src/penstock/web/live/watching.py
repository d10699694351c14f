"""Polls the nodes of a plant, once for all browsers that watch."""

import asyncio
import time

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.node.plant import Plant
from penstock.top.core.places import places_of_plant
from penstock.top.core.watch import Watch
from penstock.top.live.fetching import fetch_all
from penstock.web.core.history import History
from penstock.web.core.picture import PictureDocument, Topology
from penstock.web.gateway.core.replies import Info
from penstock.web.live.actions import is_supervised
from penstock.web.live.news import News
from penstock.web.live.trees import Happenings

NS_PER_MS = 1_000_000


class Watcher:
    """`run()` polls; newest() and wait_newer() return the results."""

    def __init__(self, plant: Plant, interval_s: float) -> None:
        self._plant = plant
        self._interval_s = interval_s
        self._watch = Watch()
        self._topology = Topology(plant)
        self._looked_ns = 0
        self._happenings = Happenings()
        self.history = History()
        self.infos: News[Info] = News()
        """Messages of agents on their infostreams."""
        self._changed = asyncio.Event()
        self._newest: PictureDocument | None = None
        self.is_supervised = False
        """True if a supervisor accepted orders at the last poll."""

    async def run(self) -> None:
        """Poll until cancelled. After a poll that takes longer than the interval, the next one begins at once."""
        loop = asyncio.get_running_loop()
        while True:
            due_s = loop.time() + self._interval_s
            await self._look()
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    def newest(self) -> PictureDocument | None:
        """The newest picture with its age; None before the first poll."""
        if self._newest is None:
            return None
        age_s = (time.monotonic_ns() - self._looked_ns) / NS_PER_SECOND
        return msgspec.structs.replace(self._newest, age_s=age_s)

    async def wait_newer(self, number: int) -> PictureDocument:
        """Wait for a picture after this number, and return the newest. A slow caller skips pictures."""
        while (newest := self.newest()) is None or newest.number <= number:
            await self._changed.wait()
        return newest

    async def _look(self) -> None:
        places = await asyncio.to_thread(places_of_plant, self._plant)
        readings = await fetch_all(places)
        self.is_supervised = await asyncio.to_thread(is_supervised, self._plant)
        self._looked_ns = time.monotonic_ns()
        picture = self._watch.take(readings, self._looked_ns)
        self._newest = self._topology.document(
            picture,
            readings,
            number=1 if self._newest is None else self._newest.number + 1,
            time_ms=time.time_ns() / NS_PER_MS,
            interval_s=self._interval_s,
        )
        self.history.take(self._newest)
        for info in self._happenings.take(readings):
            self.infos.tell(msgspec.structs.replace(info, number=self.infos.number + 1))
        self._changed.set()
        self._changed = asyncio.Event()
