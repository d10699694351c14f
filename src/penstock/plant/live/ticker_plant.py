"""A ticker plant: has every item of its feeds, and the derived views."""

import asyncio

from penstock.base.clock import SystemRandomness
from penstock.client.feeding import ChannelFeed, Feed, SubscribedFeed
from penstock.plant.config import AccessMode, PlantConfig
from penstock.plant.core.authority import Authority, LocalAuthority, OpenAuthority
from penstock.plant.core.status import NodeKind
from penstock.plant.core.views import Views
from penstock.plant.live.driver import LiveNode


class LivePlant(LiveNode):
    """A ticker plant."""

    kind: NodeKind = "plant"

    def __init__(self, config: PlantConfig) -> None:
        self.config = config
        views = Views(
            config.views,
            seed=SystemRandomness().below(2**64),
            instruments_max=config.view_instruments_max,
            trades_max=config.view_trades_max,
        )
        super().__init__(config, views=views)
        self._feeds = self._make_feeds()

    def _access_mode(self) -> AccessMode:
        return "local" if self.config.admin.url else "open"

    def _authority(self) -> Authority:
        return OpenAuthority() if self.node.tokens is None else LocalAuthority(self.node.tokens.gate.verify)

    def _is_fed(self) -> bool:
        return all(feed.is_in_touch for feed in self._feeds)

    async def _begin(self) -> None:
        for feed in self._feeds:
            feed.start()

    async def _finish(self) -> None:
        for feed in self._feeds:
            await asyncio.to_thread(feed.stop)

    def _make_feeds(self) -> list[Feed]:
        counters = self.node.counters("plant.feed")
        feeds: list[Feed] = []
        if self.config.subscribe:
            feeds.append(SubscribedFeed(self.config.admin, self.config.subscribe, self._data, counters))
        if channels := self.config.own_channels():
            feeds.append(ChannelFeed(channels, self._data, counters))
        return feeds
