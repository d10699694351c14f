"""The driver of a filter module, from configuration to shutdown.

    module = LiveFilter(config)
    await module.node.start()
    await module.node.run(stop)

The data thread (data_path.py) receives, matches and delivers. The loop's thread has the rest: control connections
(control_server.py), tokens, the map's file, accounts and metrics.
"""

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.base.status_page import Health
from penstock.filter.core.access import ApplicationAccess
from penstock.filter.core.account_rows import account_rows
from penstock.filter.core.events import ChangeMap, Tell
from penstock.filter.core.module import FilterModule
from penstock.filter.core.status import ApplicationStatus, FilterStatus, gauges_of
from penstock.filter.live.control_server import ApplicationServer
from penstock.filter.live.data_path import DataPath
from penstock.filter.module_config import FilterModuleConfig
from penstock.model import MessageModel
from penstock.model.library import shipped, shipped_names
from penstock.net.live.handover import Handover, HandoverConfig
from penstock.net.secret import read_secret
from penstock.net.tls import server_context
from penstock.net.udp import Channel
from penstock.runtime.accounts import Account, add_accounts
from penstock.runtime.node import Node, in_thread
from penstock.security.core.brokering import Revoked
from penstock.security.live.key_lease import ReceivingLease
from penstock.topics import GroupMap
from penstock.wire import Authenticator

log = logger("filter")


class LiveFilter:
    """One running module. `node` starts and closes it; `status()` describes it after the start."""

    def __init__(self, config: FilterModuleConfig) -> None:
        self.config = config
        self.node = node = Node(config, label="filter")
        self._map_path = Path(config.map) if config.map else None
        self._map_seen = _seen(self._map_path)
        group_map = GroupMap.load(self._map_path) if self._map_path is not None else None
        channels = self._channels_of(group_map) if group_map is not None else config.own_channels()
        self._lease = ReceivingLease(filter=config.name)
        core = FilterModule(
            config,
            SystemRandomness(),
            node.counters("filter"),
            groups=[channel.group_id for channel in channels],
            group_map=group_map,
            models=_models(config),
            keeps_books=bool(config.accounts.path),
            authenticator=Authenticator(lease=self._lease.flag) if config.admin.url else None,
        )
        authenticator = core.receiver.in_order.authenticator
        tokens = node.watch_tokens(
            config.admin, config.state_directory, self._revoke, authenticator=authenticator, lease=self._lease
        )
        self._access = ApplicationAccess(config, None if tokens is None else tokens.gate.verify, channels)
        secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        path = config.handover or f"@penstock-filter-{random_bytes(8).hex()}"
        handover = Handover(path, secret=secret, config=HandoverConfig(connections_max=config.applications_max))
        node.metrics.register(handover.counters)
        self._data = DataPath(config, core, self, handover, node.counters("filter.data"))
        self._server = ApplicationServer(
            config,
            self._access,
            self._data,
            path,
            secret=secret,
            tls=server_context(config.control.tls),
            counters=node.counters("filter.control"),
        )
        node.add("handover", start=handover.start, close=in_thread(handover.close))
        node.add("data path", start=self._data.start, close=in_thread(self._data.stop))
        topic = f"penstock.filter.{config.name}.{{}}"
        add_accounts(node, config.accounts, "filter.accounts", topic, self._accounts, filter=config.name)
        node.add("server", start=self._server.start, close=self._server.close)
        node.add_tokens()
        node.add("log", start=self._log_start)
        node.add_task(self._server.watch_rights)
        node.add_task(self._watch_map)
        node.show(self.status, self._health, gauges=lambda: gauges_of(self.status()))

    def _log_start(self) -> None:
        log.info("filter_started", name=self.config.name, port=self._server.port, address=_shown(self._data.address))

    @property
    def control_port(self) -> int:
        return self._server.port

    @property
    def counters(self) -> Counters:
        """Counters of the core: received packets and their handling."""
        return self._data.core.counters

    def reload_map(self) -> None:
        """Read the map's file now, even if unchanged. Errors are logged, and the current map stays in use."""
        self._map_seen = None

    def status(self) -> FilterStatus:
        """May be called in any thread. Each value is consistent, but values may be of slightly different times."""
        data = self._data
        return FilterStatus(
            name=self.config.name,
            control_port=self._server.port,
            address=_shown(data.address),
            repair=self.config.repair,
            is_in_touch=self.node.is_in_touch,
            receiving_lease_s=None if self.node.tokens is None else self._lease.left_s,
            receiving_trouble="" if self.node.tokens is None else self._lease.trouble,
            groups=len(data.groups),
            interests=len(data.core.table),
            messages=data.core.forwarder.messages_in,
            unwanted=data.core.forwarder.messages_unwanted,
            passed=data.core.forwarder.messages_out,
            applications=[
                ApplicationStatus(
                    registrant.name,
                    registrant.number,
                    placed.attached.delivery,
                    _shown(registrant.address),
                    *data.dispatcher.sent(placed.attached.consumer),
                )
                for registrant, placed in self._server.placed()
            ],
        )

    # Calls in the data thread

    def told(self, tell: Tell) -> None:
        self.node.call(self._server.notify, tell)

    def joined(self, group: int) -> None:
        self.node.call(self._access.joined, group)

    def left(self, group: int) -> None:
        self.node.call(self._access.left, group)

    def ring_lost(self, number: int, error: PenstockError) -> None:
        self.node.call(self._server.ring_lost, number, error)

    def failed(self, error: Exception) -> None:
        self.node.fail(error)

    def port_of(self, group: int) -> int | None:
        return self._access.port_of(group)

    # Common parts

    def _revoke(self, event: Revoked) -> None:
        self._server.revoke(event.subscription_id, event.reason)

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
                self._access.use_map(self._channels_of(group_map))
                await asyncio.wrap_future(self._data.ask(lambda m=group_map: self._data.handle(ChangeMap(m))))  # type: ignore[misc]
            except PenstockError as error:
                log.error("map_refused", code=error.code, what=str(error))
            else:
                log.info("map_changed", groups=len(group_map.groups))

    async def _accounts(self) -> Iterable[Account]:
        return account_rows(await asyncio.wrap_future(self._data.ask(self._data.core.accounts)))

    def _health(self) -> Health:
        status = self.status()
        detail = f"{len(status.applications)} applications, {status.interests} interests, {status.groups} groups"
        troubles = [each for each in (self.node.token_trouble, status.receiving_trouble) if each]
        return Health(is_healthy=True, detail="; ".join([detail, *troubles]))


def _seen(path: Path | None) -> tuple[int, int] | None:
    """Identify the version of a file by time and size; None if there is no file."""
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
