"""A live filter module: everything of it in one process, from its configuration to its end.

    module = LiveFilter(config)
    await module.start()
    await module.run(stop)

The data thread (datapath.py) receives, matches and delivers. The loop's thread has the rest: the control connections
(serving.py), the administration server (administration.py), the map's file and metrics.
"""

import asyncio
import contextlib
import os
from pathlib import Path

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.endpoint import Health
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.base.metrics import Metrics
from penstock.filter.accounting import Entry
from penstock.filter.core import FilterModule
from penstock.filter.datapath import DataPath
from penstock.filter.desk import Desk
from penstock.filter.events import ChangeMap, Tell
from penstock.filter.module_config import FilterModuleConfig
from penstock.filter.recorder import AccountRecorder
from penstock.filter.serving import ApplicationServer
from penstock.filter.status import ApplicationStatus, FilterStatus, gauges_of
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.agent import NodeLife
from penstock.net.handover import Handover, HandoverConfig
from penstock.net.page_access import page_of
from penstock.net.secret import read_secret
from penstock.net.tls import server_context
from penstock.net.udp import Channel
from penstock.security.authentication_state import AuthenticationState
from penstock.security.brokering import Revoked
from penstock.security.client import AdminClient
from penstock.security.token_watch import TokenWatch
from penstock.topics import GroupMap
from penstock.wire import Authenticator

log = logger("filter")


class LiveFilter:
    """One module. After start() `status()` says everything; run() ends when it is told to, or raises why it must."""

    def __init__(self, config: FilterModuleConfig) -> None:
        self.config = config
        self._life = NodeLife()
        self._metrics = Metrics()
        self._map_path = Path(config.map) if config.map else None
        self._map_seen = _seen(self._map_path)
        group_map = GroupMap.load(self._map_path) if self._map_path is not None else None
        channels = self._channels_of(group_map) if group_map is not None else config.own_channels()
        core = FilterModule(
            config,
            SystemRandomness(),
            self._counted("filter"),
            groups=[channel.group_id for channel in channels],
            group_map=group_map,
            models=_models(config),
            keeps_books=bool(config.accounts.path),
            authenticator=Authenticator() if config.admin.url else None,
        )
        self._authenticator = core.watcher.in_order.authenticator
        self._recorder = self._make_recorder()
        self._tokens = self._make_tokens()
        self._desk = Desk(config, None if self._tokens is None else self._tokens.gate.verify, channels)
        secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        path = config.handover or f"@penstock-filter-{random_bytes(8).hex()}"
        self._handover = Handover(path, secret=secret, config=HandoverConfig(connections_max=config.applications_max))
        self._metrics.register(self._handover.counters)
        self._data = DataPath(config, core, self, self._handover, self._counted("filter.data"))
        self._server = ApplicationServer(
            config,
            self._desk,
            self._data,
            path,
            secret=secret,
            tls=server_context(config.control.tls),
            counters=self._counted("filter.control"),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._endpoint = page_of(config, self._metrics, self._liveness, self.status)
        self._metrics.show_gauges(lambda: gauges_of(self.status()))

    async def start(self) -> None:
        try:
            if self._recorder is not None:
                await asyncio.to_thread(self._recorder.start)
            self._handover.start()
            self._data.start()
            await self._server.start()
            if self._tokens is not None:
                self._tokens.start()
            self._endpoint.start()
        except BaseException:
            await self.close()
            raise
        work = [self._server.watch_tokens(), self._watch_map(), self._give_accounts()]
        self._tasks = [asyncio.ensure_future(each) for each in work]
        for task in self._tasks:
            self._life.watch(task)
        log.info("filter_started", name=self.config.name, port=self._server.port, address=_shown(self._data.address))

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set or something fails; then everything ends in order."""
        await self._life.run(stop, self.close)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
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

    @property
    def counters(self) -> Counters:
        """Of the core: what came from the network, and what became of it."""
        return self._data.core.counters

    def reload_map(self) -> None:
        """Read the map's file now, changed or not; one that cannot be used is told of, and the one before stays."""
        self._map_seen = None

    def status(self) -> FilterStatus:
        """May be called in any thread: what it reads is always whole, though not of one moment."""
        data = self._data
        return FilterStatus(
            name=self.config.name,
            control_port=self._server.port,
            address=_shown(data.address),
            repair=self.config.repair,
            is_in_touch=self._tokens is None or self._tokens.is_in_touch,
            groups=len(data.groups),
            interests=len(data.core.table),
            messages=data.core.forwarder.messages_in,
            unwanted=data.core.forwarder.messages_unwanted,
            passed=data.core.forwarder.messages_out,
            applications=[
                ApplicationStatus(
                    registrant.name,
                    registrant.application_id,
                    placed.attached.delivery,
                    _shown(registrant.address),
                    *data.dispatcher.sent(placed.attached.consumer),
                )
                for registrant, placed in self._server.placed()
            ],
        )

    # What the data thread tells, there

    def told(self, tell: Tell) -> None:
        self._life.call(self._server.tell, tell)

    def joined(self, group: int) -> None:
        self._life.call(self._desk.joined, group)

    def left(self, group: int) -> None:
        self._life.call(self._desk.left, group)

    def ring_lost(self, number: int, error: PenstockError) -> None:
        self._life.call(self._server.ring_lost, number, error)

    def failed(self, error: Exception) -> None:
        self._life.call(self._life.fail, error)

    def port_of(self, group: int) -> int | None:
        return self._desk.port_of(group)

    # The rest

    def _make_tokens(self) -> TokenWatch | None:
        admin = self.config.admin
        if not admin.url:
            return None
        state = self.config.state_directory
        client = AdminClient.connect(admin.url, admin.credentials)
        assert self._authenticator is not None
        authentication = AuthenticationState(
            Path(state) / "authentication.json" if state else None, self._authenticator.use
        )
        return TokenWatch(
            client,
            Path(state) / "tokens.json" if state else None,
            self._on_revoked,
            authentication=authentication,
        )

    def _on_revoked(self, event: Revoked) -> None:
        self._life.call(self._server.revoke, event.subscription_id, event.reason)

    def _channels_of(self, group_map: GroupMap) -> list[Channel]:
        return [Channel.of(group, group_map.port, interface=self.config.interface) for group in group_map.groups]

    async def _watch_map(self) -> None:
        while self._map_path is not None:
            await asyncio.sleep(self.config.map_check_ms / 1_000)
            seen = _seen(self._map_path)
            if seen is None or seen == self._map_seen:
                continue
            self._map_seen = seen
            try:
                group_map = await asyncio.to_thread(GroupMap.load, self._map_path)
                self._desk.use_map(self._channels_of(group_map))
                await asyncio.wrap_future(self._data.ask(lambda m=group_map: self._data.handle(ChangeMap(m))))  # type: ignore[misc]
            except PenstockError as error:
                log.error("map_refused", code=error.code, what=str(error))
            else:
                log.info("map_changed", groups=len(group_map.groups))

    def _make_recorder(self) -> AccountRecorder | None:
        if not self.config.accounts.path:
            return None
        return AccountRecorder(self.config.name, self.config.accounts, self._counted("filter.accounts"))

    async def _give_accounts(self) -> None:
        while self._recorder is not None:
            await asyncio.sleep(self.config.accounts.period_s)
            entries = await asyncio.wrap_future(self._data.ask(self._data.core.accounts))
            await asyncio.to_thread(self._recorder.record, entries)

    async def _close_accounts(self, recorder: AccountRecorder) -> None:
        entries: list[Entry] = []
        if self._tasks:
            with contextlib.suppress(PenstockError):  # the data thread has failed: what was written stands
                entries = await asyncio.wrap_future(self._data.ask(self._data.core.accounts))
        await asyncio.to_thread(recorder.close, entries)

    def _counted(self, component: str) -> Counters:
        counters = Counters(component, filter=self.config.name)
        self._metrics.register(counters)
        return counters

    def _liveness(self) -> Health:
        status = self.status()
        detail = f"{len(status.applications)} applications, {status.interests} interests, {status.groups} groups"
        if not status.is_in_touch:
            detail += "; the administration server does not answer"
        return Health(not self._life.has_failed, detail)


def _seen(path: Path | None) -> tuple[int, int] | None:
    """What tells one version of a file from another; None while there is no file."""
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ino)


def _models(config: FilterModuleConfig) -> list[MessageModel]:
    models = [shipped(name) for name in shipped_names()] + [MessageModel.load(Path(name)) for name in config.models]
    return list({model.id: model for model in models}.values())


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
