"""Live nodes: everything of one in one process, from its configuration to its end.

    node = live_node(config)
    await node.start()
    await node.run(stop)

The loop's thread has the control connections (serving.py), the node above (upstream.py) and metrics. Feeds have threads
of their own (feeding.py); whoever touches the engine does so under one lock (datapath.py).
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.endpoint import Health
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.base.metrics import Metrics
from penstock.engine import ClassMap, DistributionEngine
from penstock.engine.control import OpenRegion
from penstock.engine.events import ChangeClasses
from penstock.feed.adapter_status import PERCENTILES, shown_latency
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.agent import NodeLife
from penstock.net.handover import Handover, HandoverConfig
from penstock.net.page_access import page_of
from penstock.net.secret import read_secret
from penstock.net.stream_server import Through
from penstock.net.tls import server_context
from penstock.plant._courier import Courier
from penstock.plant.access import Access
from penstock.plant.config import AccessMode, NodeConfig
from penstock.plant.datapath import DataPath
from penstock.plant.desk import Desk
from penstock.plant.recorder import Account, AccountRecorder, Intake
from penstock.plant.serving import NodeServer, OwnSources, Sources
from penstock.plant.status import NodeKind, NodeStatus, gauges_of, rows_of
from penstock.plant.views import Content, Views
from penstock.security.brokering import Revoked
from penstock.security.client import AdminClient
from penstock.security.token_watch import UNREACHABLE, TokenWatch

STATUS_WAIT_SECONDS = 2.0
STATUS_CONSUMERS_MAX = 10_000
METRICS_CONSUMERS_MAX = 512
"""Consumers whose records are shown; of an edge cache there may be many more."""

EPOCH_BITS = 62

log = logger("plant")


class LiveNode:
    """One node. After start() `status()` says everything; run() ends when it is told to, or raises why it must."""

    kind: NodeKind

    def __init__(self, config: NodeConfig, *, views: Views | None = None) -> None:
        self._node = config
        self._life = NodeLife()
        self._metrics = Metrics()
        self._counters: list[Counters] = []
        self._epoch = 1 + SystemRandomness().below(2**EPOCH_BITS)
        self._secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in config.models]
        self._models = {model.id: model for model in models}
        engine = DistributionEngine(
            config.engine,
            SystemRandomness(),
            self._counted("engine"),
            models=self._models.values(),
            rules=self._rules(),
            limits=config.metering,
            signals=config.signals,
        )
        path = config.handover or f"@penstock-{self.kind}-{random_bytes(8).hex()}"
        connections_max = min(16 * config.engine.consumers_max, 10_000)
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
        self._recorder = self._make_recorder()
        self._tasks: list[asyncio.Task[None]] = []
        self._endpoint = page_of(config, self._metrics, self._liveness, self.status)
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
            if self._recorder is not None:
                await asyncio.to_thread(self._recorder.start)
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
        self._tasks = [
            asyncio.ensure_future(each) for each in (self._server.watch_rights(), self._give_accounts(), *self._work())
        ]
        for task in self._tasks:
            self._life.watch(task)
        log.info("node_started", kind=self.kind, name=self._node.name, port=self._server.port)

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set or something fails; then everything ends in order."""
        await self._life.run(stop, self.close)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._finish()
        if self._tokens is not None:
            await asyncio.to_thread(self._tokens.stop)
        await self._server.close()
        if self._recorder is not None:
            await self._close_accounts(self._recorder)
        await asyncio.to_thread(self._data.stop)
        await asyncio.to_thread(self._handover.close)
        await asyncio.to_thread(self._endpoint.stop)

    @property
    def endpoint_url(self) -> str:
        return self._endpoint.url

    @property
    def control_port(self) -> int:
        return self._server.port

    def reload_classes(self) -> None:
        """Read the rules of classes again; some that cannot be used are told of, and those before stay."""
        try:
            rules = self._rules()
        except PenstockError as error:
            log.error("classes_refused", code=error.code, what=str(error))
            return
        if rules is not None:
            self._data.ask(lambda: self._data.handle(ChangeClasses(rules)))
            log.info("classes_changed", rules=len(rules.rule))

    def _rules(self) -> ClassMap | None:
        if not self._node.classes:
            return None
        rules = ClassMap.load(self._node.classes)
        rules.check(self._models.values())
        return rules

    def take(self, content: Content) -> None:
        """Updates that this process makes itself, in any thread; for trials."""
        self._data.take(content)

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
        self._life.call(self._server.events_ready, consumer, data)

    def tell(self, consumer: int, message: OpenRegion) -> None:
        self._life.call(self._server.tell, consumer, message)

    def end(self, consumer: int, error: PenstockError) -> None:
        self._life.call(self._server.end, consumer, error)

    def wanted(self, topics: Sequence[str]) -> None:
        """A plant has everything."""

    def unwanted(self, topics: Sequence[str]) -> None:
        """And keeps it."""

    def failed(self, error: Exception) -> None:
        self._life.call(self._life.fail, error)

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
        self._life.call(self._server.revoke, event.subscription_id, event.reason)

    def _make_recorder(self) -> AccountRecorder | None:
        accounts = self._node.accounts
        if not accounts.path:
            return None
        return AccountRecorder(self._node.name, self.kind, accounts, self._counted("plant.accounts"))

    async def _give_accounts(self) -> None:
        while self._recorder is not None:
            await asyncio.sleep(self._node.accounts.period_s)
            accounts = await asyncio.wrap_future(self._data.ask(self._data.accounts))
            await asyncio.to_thread(self._recorder.record, self._intake(), accounts)

    async def _close_accounts(self, recorder: AccountRecorder) -> None:
        accounts: list[Account] = []
        if self._tasks:
            with contextlib.suppress(PenstockError):  # the data thread has failed: what was written stands
                accounts = await asyncio.wrap_future(self._data.ask(self._data.accounts))
        await asyncio.to_thread(recorder.close, self._intake(), accounts)

    def _intake(self) -> Intake:
        engine = self._data.engine
        return Intake(engine.kernel.number, engine.kernel.items.count, self._losses(), engine.consumer_count)

    def _losses(self) -> int:
        """Times that something did not come."""
        return sum(each["upstream_lost"] for each in self._counters)

    def _counted(self, component: str) -> Counters:
        counters = Counters(component, node=self._node.name)
        self._counters.append(counters)
        self._metrics.register(counters)
        return counters

    def _liveness(self) -> Health:
        status = self.status(0)
        detail = f"{status.consumer_count} consumers, {status.items} items, {status.updates} updates"
        if self._tokens is not None and not status.is_in_touch:
            detail += f"; {self._tokens.trouble or UNREACHABLE}"
        if not status.is_fed:
            detail += "; nothing comes from above"
        return Health(status.is_fed and not self._life.has_failed, detail)
