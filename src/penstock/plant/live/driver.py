"""Live nodes: everything of one in one process, from its configuration to its end.

    node = live_node(config)
    await node.node.start()
    await node.node.run(stop)

The loop's thread has the control connections (control_server.py), the upstream node (upstream.py) and metrics. Feeds
have their own threads (client/feeding.py); every access to the engine holds one lock (datapath.py).
"""

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.endpoint import Health
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.engine import ClassMap, DistributionEngine
from penstock.engine.control import OpenRegion
from penstock.engine.core.events import ChangeClasses
from penstock.feed.core.status import PERCENTILES, shown_latency
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.live.handover import Handover, HandoverConfig
from penstock.net.live.stream_server import Through
from penstock.net.secret import read_secret
from penstock.net.tls import server_context
from penstock.plant.config import AccessMode, NodeConfig
from penstock.plant.core.access import ConsumerAccess
from penstock.plant.core.account_rows import ConsumerAccount, Intake, account_rows
from penstock.plant.core.authority import Authority
from penstock.plant.core.status import NodeKind, NodeStatus, gauges_of, rows_of
from penstock.plant.core.views import Content, Views
from penstock.plant.live._session_sender import SessionSender
from penstock.plant.live.control_server import NodeServer, OwnSources, Sources
from penstock.plant.live.datapath import DataPath
from penstock.runtime.accounts import Account, add_accounts
from penstock.runtime.node import Node, in_thread
from penstock.security.core.brokering import Revoked

STATUS_WAIT_SECONDS = 2.0
STATUS_CONSUMERS_MAX = 10_000
METRICS_CONSUMERS_MAX = 512
"""Maximum number of consumers in the metrics; an edge cache may have many more."""

EPOCH_BITS = 62

log = logger("plant")


class LiveNode:
    """One running node. `node` starts and closes it; `status()` describes it after the start."""

    kind: NodeKind

    def __init__(self, config: NodeConfig, *, views: Views | None = None) -> None:
        self._config = config
        self.node = node = Node(config)
        self._epoch = 1 + SystemRandomness().below(2**EPOCH_BITS)
        self._secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in config.models]
        self._models = {model.id: model for model in models}
        engine = DistributionEngine(
            config.engine,
            SystemRandomness(),
            node.counters("engine"),
            models=self._models.values(),
            rules=self._rules(),
            limits=config.metering,
            signals=config.signals,
        )
        path = config.handover or f"@penstock-{self.kind}-{random_bytes(8).hex()}"
        connections_max = min(16 * config.engine.consumers_max, 10_000)
        self._handover = handover = Handover(
            path, secret=self._secret, config=HandoverConfig(connections_max=connections_max)
        )
        node.metrics.register(handover.counters)
        self._data = DataPath(config, engine, views, self, handover, self._session_sender())
        if self._access_mode() == "local":
            node.watch_tokens(config.admin, config.state_directory, self._revoke)
        self._access = ConsumerAccess(config.engine.classes, config.metering, consumers_max=config.engine.consumers_max)
        self._server = NodeServer(
            config,
            self._access,
            self._data,
            self._authority(),
            self._sources(),
            path,
            epoch=self._epoch,
            secret=self._secret,
            tls=server_context(config.control.tls),
            counters=node.counters("plant.control"),
            through=self._through(),
        )
        node.add("handover", start=handover.start, close=in_thread(handover.close))
        node.add("data path", start=self._data.start, close=in_thread(self._data.stop))
        topic = f"penstock.engine.{config.name}.{{}}"
        add_accounts(node, config.accounts, "plant.accounts", topic, self._accounts, node=config.name)
        node.add("server", start=self._server.start, close=self._server.close)
        node.add_tokens()
        node.add("sources", start=self._begin, close=self._finish)
        node.add("log", start=self._log_start)
        node.add_task(self._server.watch_rights)
        node.show(
            self.status,
            self._health,
            gauges=lambda: gauges_of(self.status(0)),
            rows=lambda: rows_of(self.status(METRICS_CONSUMERS_MAX)),
        )

    # Differences between kinds of nodes

    def _authority(self) -> Authority:
        raise NotImplementedError

    def _sources(self) -> Sources:
        return OwnSources(self._data, self._models, self._config.snapshot_items_max)

    def _is_fed(self) -> bool:
        raise NotImplementedError

    def _session_sender(self) -> SessionSender | None:
        """The sender of session events; None: the node's loop sends them."""
        return None

    def _through(self) -> Through | None:
        """The transport that carries control connections, if not asyncio."""
        return None

    async def _begin(self) -> None:
        """Called when consumers can be served."""

    async def _finish(self) -> None:
        """Called before service ends."""

    # Common parts

    def _log_start(self) -> None:
        log.info("node_started", kind=self.kind, name=self._config.name, port=self._server.port)

    @property
    def control_port(self) -> int:
        return self._server.port

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
        if not self._config.classes:
            return None
        rules = ClassMap.load(self._config.classes)
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
            self._config.name,
            self.kind,
            self._server.port,
            self._epoch,
            self.node.is_in_touch,
            self._is_fed(),
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
        """A ticker plant receives all its topics anyway."""

    def unwanted(self, topics: Sequence[str]) -> None:
        """A ticker plant keeps all its topics."""

    def failed(self, error: Exception) -> None:
        self.node.fail(error)

    def _access_mode(self) -> AccessMode:
        raise NotImplementedError

    def _revoke(self, event: Revoked) -> None:
        self._server.revoke(event.subscription_id, event.reason)

    async def _accounts(self) -> Iterable[Account]:
        accounts: list[ConsumerAccount] = []
        with contextlib.suppress(PenstockError):  # the data thread has failed: the intake is still known
            accounts = await asyncio.wrap_future(self._data.ask(self._data.accounts))
        return account_rows(self.kind, self._intake(), accounts)

    def _intake(self) -> Intake:
        engine = self._data.engine
        return Intake(engine.kernel.items.number, engine.kernel.items.count, self._losses(), engine.consumer_count)

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
