"""The driver of ticker plants, multiplexers and edge caches, from configuration to shutdown.

    node = LiveNode(config)
    await node.node.start()
    await node.node.run(stop)

The kinds of nodes differ in where updates come from (ticker_plant.py, multiplexer.py), and an edge cache serves
WebSockets too (edge.py). The loop's thread has the control connections (control_server.py), the upstream node
(upstream.py) and metrics. Feeds have their own threads (client/feeding.py); every access to the engine holds one lock
(data_path.py).
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.base.status_page import Health
from penstock.engine import ClassMap, DistributionEngine
from penstock.engine.control import OpenRegion
from penstock.engine.core.events import ChangeClasses
from penstock.feed.core.status import PERCENTILES, shown_latency
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.live.handover import Handover, HandoverConfig
from penstock.net.secret import read_secret
from penstock.net.tls import server_context
from penstock.plant.config import AnyNodeConfig, PlantConfig
from penstock.plant.core.access import ConsumerAccess
from penstock.plant.core.account_rows import ConsumerAccount, IntakeCounts, account_rows
from penstock.plant.core.authority import Authority, LocalAuthority
from penstock.plant.core.status import NodeStatus, gauges_of, rows_of
from penstock.plant.core.views import Content
from penstock.plant.edge_config import EdgeConfig
from penstock.plant.live.control_server import NodeServer, Sources
from penstock.plant.live.data_path import DataPath
from penstock.plant.live.edge import EdgeSessions, session_sender_of, transports_of
from penstock.plant.live.multiplexer import UpstreamSource
from penstock.plant.live.session_transport import SessionTransports
from penstock.plant.live.ticker_plant import PlantFeeds, views_of
from penstock.runtime.accounts import Account, add_accounts
from penstock.runtime.node import Node, Work, in_thread
from penstock.security.core.brokering import Revoked

STATUS_WAIT_SECONDS = 2.0
STATUS_CONSUMERS_MAX = 10_000
METRICS_CONSUMERS_MAX = 512
"""Maximum number of consumers in the metrics; an edge cache may have many more."""

EPOCH_BITS = 62

log = logger("plant")


class UpdateSource(Protocol):
    """Where a node's updates come from: feeds, or the upstream node."""

    @property
    def is_fed(self) -> bool: ...

    @property
    def authority(self) -> Authority:
        """Checks the rights of consumers, if the node does not check tokens itself."""
        ...

    @property
    def sources(self) -> Sources: ...

    @property
    def tasks(self) -> Sequence[Work]: ...

    async def start(self) -> None:
        """Called when consumers can be served."""

    async def close(self) -> None: ...

    def wanted(self, topics: Sequence[str]) -> None: ...

    def unwanted(self, topics: Sequence[str]) -> None: ...


class LiveNode:
    """One running node: a ticker plant, a multiplexer or an edge cache. `node` starts and closes it; `status()`
    describes it after the start."""

    def __init__(self, config: AnyNodeConfig) -> None:
        self.config = config
        self.node = node = Node(config)
        self._epoch = 1 + SystemRandomness().below(2**EPOCH_BITS)
        self._secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in config.models]
        self._models = {model.id: model for model in models}
        edge = config if isinstance(config, EdgeConfig) else None
        sender = None if edge is None else session_sender_of(edge)
        views = views_of(config) if isinstance(config, PlantConfig) else None
        engine = self._make_engine()
        path = config.handover or f"@penstock-{config.kind}-{random_bytes(8).hex()}"
        self._handover = handover = self._make_handover(path)
        self._data = DataPath(config, engine, views, self, handover, sender)
        transports = None if edge is None or sender is None else transports_of(edge, sender, self._data)
        if config.access == "local":
            node.watch_tokens(config.admin, config.state_directory, self._revoke)
        self._access = ConsumerAccess(config.engine.classes, config.metering, consumers_max=config.engine.consumers_max)
        self._source = self._make_source()
        self._server = self._make_server(path, transports)
        self._sessions: EdgeSessions | None = None
        if edge is not None and transports is not None:
            counters = node.counters("plant.websocket")
            self._sessions = EdgeSessions(edge, transports, self._data, self._server, self._models, counters)
        node.add("handover", start=handover.start, close=in_thread(handover.close))
        node.add("data path", start=self._data.start, close=in_thread(self._data.stop))
        topic = f"penstock.engine.{config.name}.{{}}"
        add_accounts(node, config.accounts, "plant.accounts", topic, self._accounts, node=config.name)
        node.add("server", start=self._server.start, close=self._server.close)
        node.add_tokens()
        node.add("source", start=self._source.start, close=self._source.close)
        if self._sessions is not None:
            node.add("sessions", start=self._sessions.start, close=self._sessions.close)
        node.add("log", start=self._log_start)
        node.add_task(self._server.watch_rights)
        for work in self._source.tasks:
            node.add_task(work)
        if self._sessions is not None:
            node.add_task(self._sessions.watch_stuck)
        node.show(
            self.status,
            self._health,
            gauges=lambda: gauges_of(self.status(0)),
            rows=lambda: rows_of(self.status(METRICS_CONSUMERS_MAX)),
        )

    def _make_engine(self) -> DistributionEngine:
        config = self.config
        return DistributionEngine(
            config.engine,
            SystemRandomness(),
            self.node.counters("engine"),
            models=self._models.values(),
            rules=self._rules(),
            limits=config.metering,
            signals=config.signals,
        )

    def _make_handover(self, path: str) -> Handover:
        connections_max = min(16 * self.config.engine.consumers_max, 10_000)
        handover = Handover(path, secret=self._secret, config=HandoverConfig(connections_max=connections_max))
        self.node.metrics.register(handover.counters)
        return handover

    def _make_source(self) -> UpdateSource:
        config, node = self.config, self.node
        if isinstance(config, PlantConfig):
            return PlantFeeds(config, self._data, self._models, node.counters("plant.feed"))
        return UpstreamSource(config, self._data, self._models, node.counters("plant.upstream"), self._withdraw)

    def _make_server(self, handover_path: str, transports: SessionTransports | None) -> NodeServer:
        """With `transports`, they carry the control connections that have no TLS; otherwise asyncio does."""
        config, tokens = self.config, self.node.tokens
        return NodeServer(
            config,
            self._access,
            self._data,
            self._source.authority if tokens is None else LocalAuthority(tokens.gate.verify),
            self._source.sources,
            handover_path,
            epoch=self._epoch,
            secret=self._secret,
            tls=server_context(config.control.tls),
            counters=self.node.counters("plant.control"),
            through=None if transports is None or config.control.tls is not None else transports.through,
        )

    def _log_start(self) -> None:
        log.info("node_started", kind=self.config.kind, name=self.config.name, port=self._server.port)

    @property
    def control_port(self) -> int:
        return self._server.port

    @property
    def websocket_port(self) -> int | None:
        """None: only an edge cache serves WebSockets."""
        return None if self._sessions is None else self._sessions.port

    def reload_classes(self) -> None:
        """Read the classification rules again. Errors are logged, and the rules stay unchanged."""
        try:
            rules = self._rules()
        except PenstockError as error:
            log.error("classes_refused", code=error.code, what=str(error))
            return
        if rules is not None:
            self._data.ask(lambda: self._data.handle(ChangeClasses(rules)))
            log.info("classes_changed", rules=len(rules.rule))

    def _rules(self) -> ClassMap | None:
        if not self.config.classes:
            return None
        rules = ClassMap.load(self.config.classes)
        rules.check(self._models.values())
        return rules

    def take(self, content: Content) -> None:
        """Distribute updates made by this process, in any thread; for trials."""
        self._data.take(content)

    def status(self, consumers_max: int = STATUS_CONSUMERS_MAX) -> NodeStatus:
        """Return the status with the records of at most `consumers_max` consumers. May be called in any thread but
        the data thread."""
        engine = self._data.engine
        try:
            consumers = self._data.ask(lambda: engine.records(consumers_max)).result(STATUS_WAIT_SECONDS)
        except (PenstockError, TimeoutError):  # the data path has stopped or is very busy
            consumers = []
        return NodeStatus(
            self.config.name,
            self.config.kind,
            self._server.port,
            self._epoch,
            self.node.is_in_touch,
            self._source.is_fed,
            engine.kernel.items.count,
            engine.kernel.items.number,
            engine.consumer_count,
            consumers,
            shown_latency({q: self._data.latencies.percentile(q) for q in PERCENTILES}),
        )

    # Calls from the data path, in any thread

    def events_ready(self, consumer: int, data: bytes) -> None:
        self.node.call(self._server.events_ready, consumer, data)

    def tell(self, consumer: int, message: OpenRegion) -> None:
        self.node.call(self._server.tell, consumer, message)

    def end(self, consumer: int, error: PenstockError) -> None:
        self.node.call(self._server.end_consumer, consumer, error)

    def wanted(self, topics: Sequence[str]) -> None:
        self._source.wanted(topics)

    def unwanted(self, topics: Sequence[str]) -> None:
        self._source.unwanted(topics)

    def failed(self, error: Exception) -> None:
        self.node.fail(error)

    # Rights, accounts, health

    def _revoke(self, event: Revoked) -> None:
        self._withdraw(event.subscription_id, event.reason)

    def _withdraw(self, subscription_id: str, reason: str) -> None:
        self._server.revoke(subscription_id, reason)

    async def _accounts(self) -> Iterable[Account]:
        accounts: list[ConsumerAccount] = []
        with contextlib.suppress(PenstockError):  # the data thread has failed: the intake is still known
            accounts = await asyncio.wrap_future(self._data.ask(self._data.accounts))
        return account_rows(self.config.kind, self._intake(), accounts)

    def _intake(self) -> IntakeCounts:
        engine = self._data.engine
        return IntakeCounts(
            engine.kernel.items.number, engine.kernel.items.count, self._losses(), engine.consumer_count
        )

    def _losses(self) -> int:
        """Number of losses before this node."""
        return self.node.total("upstream_lost")

    def _health(self) -> Health:
        status = self.status(0)
        detail = f"{status.consumer_count} consumers, {status.items} items, {status.updates} updates"
        if trouble := self.node.token_trouble:
            detail += f"; {trouble}"
        if not status.is_fed:
            detail += "; no data from the upstream node"
        return Health(status.is_fed, detail)
