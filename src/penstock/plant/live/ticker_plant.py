"""The update source of a ticker plant, which has every item of its feeds, and the derived views."""

import asyncio
from collections.abc import Sequence

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.client.feeding import ChannelFeed, Feed, SubscribedFeed
from penstock.model import MessageModel
from penstock.plant.config import PlantConfig
from penstock.plant.core.authority import Authority, OpenAuthority
from penstock.plant.core.views import Views
from penstock.plant.live.control_server import OwnSources, Sources
from penstock.plant.live.data_path import DataPath
from penstock.runtime.node import Work


class PlantFeeds:
    """Updates from feeds, from start() to close()."""

    def __init__(
        self, config: PlantConfig, data: DataPath, models: dict[int, MessageModel], counters: Counters
    ) -> None:
        self.authority: Authority = OpenAuthority()
        self.sources: Sources = OwnSources(data, models, config.snapshot_items_max)
        self.tasks: Sequence[Work] = ()
        self._feeds: list[Feed] = []
        if config.subscribe:
            self._feeds.append(SubscribedFeed(config.admin, config.subscribe, data, counters))
        if channels := config.own_channels():
            self._feeds.append(ChannelFeed(channels, data, counters))

    @property
    def is_fed(self) -> bool:
        return all(feed.is_in_touch for feed in self._feeds)

    async def start(self) -> None:
        for feed in self._feeds:
            feed.start()

    async def close(self) -> None:
        for feed in self._feeds:
            await asyncio.to_thread(feed.stop)

    def wanted(self, topics: Sequence[str]) -> None:
        """A ticker plant receives all its topics anyway."""

    def unwanted(self, topics: Sequence[str]) -> None:
        """A ticker plant keeps all its topics."""


def views_of(config: PlantConfig) -> Views:
    return Views(
        config.views,
        seed=SystemRandomness().below(2**64),
        instruments_max=config.view_instruments_max,
        trades_max=config.view_trades_max,
    )
