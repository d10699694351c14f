"""Live nodes: everything of one in one process, from its configuration to its end.

    node = LivePlant(config)
    await node.start()
    await node.run(stop)

The loop's thread has the control connections (serving.py), the node above (upstream.py) and metrics. Feeds have threads
of their own (feeding.py); whoever touches the engine does so under one lock (datapath.py).
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.endpoint import Endpoint, Health
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.base.metrics import Metrics
from penstock.engine import DistributionEngine
from penstock.feed.adapter_status import PERCENTILES, shown_latency
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.agent import stopped_or_failed
from penstock.net.handover import Handover, HandoverConfig
from penstock.net.secret import Secret, read_secret
from penstock.net.stream_server import Through
from penstock.net.tls import server_context
from penstock.plant._courier import Courier
from penstock.plant.access import Access, ForwardAccess, LocalAccess, OpenAccess, PlantHeldAccess
from penstock.plant.config import AccessMode, MuxConfig, NodeConfig, PlantConfig
from penstock.plant.datapath import DataPath
from penstock.plant.desk import Desk
from penstock.plant.feeding import ChannelFeed, Feed, SubscribedFeed
from penstock.plant.serving import NodeServer, OwnSources, Sources
from penstock.plant.status import NodeKind, NodeStatus, gauges_of, rows_of
from penstock.plant.tokens import OwnToken
from penstock.plant.upstream import Upstream
from penstock.plant.views import Views
from penstock.security.brokering import Revoked
from penstock.security.client import AdminClient
from penstock.security.token_watch import TokenWatch

STATUS_WAIT_SECONDS = 2.0
STATUS_CONSUMERS_MAX = 10_000
METRICS_CONSUMERS_MAX = 512
"""Consumers whose records are shown; of an edge cache there may be many more."""

EPOCH_BITS = 62

P = ParamSpec("P")

log = logger("plant")


class LiveNode:
    """One node. After start() `status()` says everything; run() ends when it is told to, or raises why it must."""

    kind: NodeKind

    def __init__(self, config: NodeConfig, *, views: Views | None = None) -> None:
        self._node = config
        self._loop = asyncio.get_running_loop()
        self._metrics = Metrics()
        self._failed: asyncio.Future[None] = self._loop.create_future()
        self._epoch = 1 + SystemRandomness().below(2**EPOCH_BITS)
        self._secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in config.models]
        self._models = {model.id: model for model in models}
        engine = DistributionEngine(
            config.engine, SystemRandomness(), self._counted("engine"), models=self._models.values()
        )
        path = config.handover or f"@penstock-{self.kind}-{random_bytes(8).hex()}"
        connections_max = min(4 * config.engine.consumers_max, 10_000)
        self._handover = Handover(path, secret=self._secret, config=HandoverConfig(connections_max=connections_max))
        self._metrics.register(self._handover.counters)
        self._data = DataPath(config, engine, views, self, self._handover, self._courier())
        self._tokens = self._make_tokens()
        self._desk = Desk(config.engine.classes, config.metering, consumers_max=config.engine.consumers_max)
        self._server = NodeServer(
            config,
            self._desk,
            self._data,
            self._access(),
            self._sources(),
            path,
            epoch=self._epoch,
            secret=self._secret,
            tls=server_context(config.control.tls),
            counters=self._counted("plant.control"),
            through=self._through(),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._endpoint = Endpoint(
            self._metrics, self._liveness, host=config.metrics_host, port=config.metrics_port, status=self.status
        )
        self._metrics.show_gauges(lambda: gauges_of(self.status(0)))
        self._metrics.show_rows(lambda: rows_of(self.status(METRICS_CONSUMERS_MAX)))

    # What kinds of nodes differ in

    def _access(self) -> Access:
        raise NotImplementedError

    def _sources(self) -> Sources:
        return OwnSources(self._data, self._models, self._node.snapshot_items_max)

    def _is_fed(self) -> bool:
        raise NotImplementedError

    def _courier(self) -> Courier | None:
        """Who brings the events of sessions to their connections; None: this node's loop does."""
        return None

    def _through(self) -> Through | None:
        """Who sends for the control connections."""
        return None

    def _work(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs besides, until the node ends."""
        return ()

    async def _begin(self) -> None:
        """Once consumers can be served."""

    async def _finish(self) -> None:
        """Before they are no longer."""

    # Its life

    async def start(self) -> None:
        try:
            self._handover.start()
            self._data.start()
            await self._server.start()
            if self._tokens is not None:
                self._tokens.start()
            await self._begin()
            self._endpoint.start()
        except BaseException:
            await self.close()
            raise
        self._tasks = [asyncio.ensure_future(each) for each in (self._server.watch_rights(), *self._work())]
        for task in self._tasks:
            task.add_done_callback(self._on_task_done)
        log.info("node_started", kind=self.kind, name=self._node.name, port=self._server.port)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set or something fails; then everything ends in order."""
        try:
            await stopped_or_failed(stop, self._failed)
        finally:
            await self.close()
        if self._failed.done():
            self._failed.result()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._finish()
        if self._tokens is not None:
            await asyncio.to_thread(self._tokens.stop)
        await self._server.close()
        await asyncio.to_thread(self._data.stop)
        await asyncio.to_thread(self._handover.close)
        await asyncio.to_thread(self._endpoint.stop)

    @property
    def endpoint_url(self) -> str:
        return self._endpoint.url

    @property
    def control_port(self) -> int:
        return self._server.port

    def status(self, consumers_max: int = STATUS_CONSUMERS_MAX) -> NodeStatus:
        """With the records of at most so many consumers. May be called in any thread but the data path's."""
        engine = self._data.engine
        try:
            consumers = self._data.ask(lambda: engine.records(consumers_max)).result(STATUS_WAIT_SECONDS)
        except (PenstockError, TimeoutError):  # it has stopped, or is very busy
            consumers = []
        return NodeStatus(
            self._node.name,
            self.kind,
            self._server.port,
            self._epoch,
            self._tokens is None or self._tokens.is_in_touch,
            self._is_fed(),
            engine.kernel.items.count,
            engine.kernel.number,
            engine.consumer_count,
            consumers,
            shown_latency({q: self._data.latencies.percentile(q) for q in PERCENTILES}),
        )

    # What the data path tells, in any thread

    def events_ready(self, consumer: int, data: bytes) -> None:
        self._call(self._server.events_ready, consumer, data)

    def wanted(self, topics: Sequence[str]) -> None:
        """A plant has everything."""

    def unwanted(self, topics: Sequence[str]) -> None:
        """And keeps it."""

    def failed(self, error: Exception) -> None:
        self._call(self._fail, error)

    def _call(self, function: Callable[P, None], *arguments: P.args, **_: P.kwargs) -> None:
        """From another thread into the loop's."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    # The rest

    def _make_tokens(self) -> TokenWatch | None:
        admin = self._node.admin
        if not admin.url or self._access_mode() != "local":
            return None
        state = self._node.state_directory
        client = AdminClient.connect(admin.url, admin.credentials)
        return TokenWatch(client, Path(state) / "tokens.json" if state else None, self._on_revoked)

    def _access_mode(self) -> AccessMode:
        raise NotImplementedError

    def _on_revoked(self, event: Revoked) -> None:
        self._call(self._server.revoke, event.subscription_id, event.reason)

    def _counted(self, component: str) -> Counters:
        counters = Counters(component, node=self._node.name)
        self._metrics.register(counters)
        return counters

    def _liveness(self) -> Health:
        status = self.status(0)
        detail = f"{status.consumer_count} consumers, {status.items} items, {status.updates} updates"
        if not status.is_in_touch:
            detail += "; the administration server does not answer"
        if not status.is_fed:
            detail += "; nothing comes from above"
        return Health(not self._failed.done(), detail)


class LivePlant(LiveNode):
    """A ticker plant."""

    kind = "plant"

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

    def _access(self) -> Access:
        return OpenAccess() if self._tokens is None else LocalAccess(self._tokens.gate.verify)

    def _is_fed(self) -> bool:
        return all(feed.is_in_touch for feed in self._feeds)

    async def _begin(self) -> None:
        for feed in self._feeds:
            feed.start()

    async def _finish(self) -> None:
        for feed in self._feeds:
            await asyncio.to_thread(feed.stop)

    def _make_feeds(self) -> list[Feed]:
        counters = self._counted("plant.feed")
        feeds: list[Feed] = []
        if self.config.subscribe:
            feeds.append(SubscribedFeed(self.config.admin, self.config.subscribe, self._data, counters))
        if channels := self.config.own_channels():
            feeds.append(ChannelFeed(channels, self._data, counters))
        return feeds


class LiveMux(LiveNode):
    """A connection multiplexer: what its consumers want is taken from a node above, once."""

    kind: NodeKind = "mux"

    def __init__(self, config: MuxConfig) -> None:
        self.config = config
        self._upstream: Upstream | None = None
        super().__init__(config)

    def _access_mode(self) -> AccessMode:
        return self.config.access

    def _access(self) -> Access:
        if self._tokens is not None:
            return LocalAccess(self._tokens.gate.verify)
        modes: dict[AccessMode, Callable[[], Access]] = {
            "open": OpenAccess,
            "forward": lambda: ForwardAccess(self._above()),
            "plant": lambda: PlantHeldAccess(self._above()),
        }
        return modes[self.config.access]()

    def _sources(self) -> Sources:
        return self._above()

    def _above(self) -> Upstream:
        if self._upstream is None:
            above = self.config.upstream
            tls = ssl.create_default_context(cafile=above.ca_file) if above.ca_file else None
            self._upstream = Upstream(
                self.config.name,
                (above.host, above.port),
                self._data,
                cls=above.cls,
                per_second=above.per_second,
                secret=self._upstream_secret(),
                tls=tls,
                counters=self._counted("plant.upstream"),
                on_withdrawn=self._server_revoke,
            )
        return self._upstream

    def _upstream_secret(self) -> Secret | None:
        path = self.config.upstream.secret_file
        return read_secret(Path(path)) if path else None

    def _server_revoke(self, subscription_id: str, reason: str) -> None:
        self._server.revoke(subscription_id, reason)

    def _is_fed(self) -> bool:
        return self._above().link.attached.is_set()

    def _work(self) -> Sequence[Coroutine[Any, Any, None]]:
        if not self.config.admin.url:
            return ()
        token = OwnToken(self.config.admin, self.config.upstream.topics)
        return (token.keep(self._above().link.renew),)

    async def _begin(self) -> None:
        self._above().start()

    async def _finish(self) -> None:
        await self._above().close()

    def wanted(self, topics: Sequence[str]) -> None:
        self._above().wanted(topics)

    def unwanted(self, topics: Sequence[str]) -> None:
        self._above().unwanted(topics)
