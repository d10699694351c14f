"""A live message router: everything of it in one process, from its configuration to its end.

    router = LiveRouter(config)
    await router.node.start()
    await router.node.run(stop)

The core and its links (client_links.py) are in the loop's thread; writing records to the disk and reading them
(disk.py), tokens and metrics have their own threads.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.assured.core.lease.protocol import Keep, Tell
from penstock.assured.core.pair.protocol import PairInstruction, PeerEnd, PeerSend
from penstock.assured.core.router import events
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.core.status import RouterStatus, detail_of, gauges_of, rows_of
from penstock.assured.live.access import REFUSALS, ClientAccess
from penstock.assured.live.account_rows import account_rows
from penstock.assured.live.client_links import ClientLinks
from penstock.assured.live.client_requests import ClientRequests
from penstock.assured.live.disk import LiveDisk
from penstock.assured.live.inline_commit import RouterInlineCommit
from penstock.assured.live.observation import endpoints_of, role_of
from penstock.assured.live.pair import LivePair
from penstock.assured.live.peer_settings import peer_settings_of
from penstock.assured.live.reserve import reserve_of
from penstock.assured.node_config import RouterNodeConfig
from penstock.assured.wire.control import (
    Refused,
)
from penstock.base.clock import BootClock, SystemRandomness
from penstock.base.errors import ConfigurationError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.base.status_page import Health
from penstock.model import MessageModel
from penstock.net.live.event_loop import stopped_or_failed
from penstock.net.secret import Secret, read_secret
from penstock.net.tls import server_context
from penstock.runtime.accounts import Account, add_accounts
from penstock.runtime.core_node import CoreNode
from penstock.runtime.node import Node
from penstock.security.live.gate import TokenState

log = logger("assured")


class LiveRouter:
    """One router. `node` starts and closes it; after the start `status()` describes it."""

    def __init__(self, config: RouterNodeConfig) -> None:
        self.config = config
        self.node = node = Node(config)
        if config.admin.url:
            _made(Path(config.state_directory))
        tokens = node.watch_tokens(
            config.admin,
            config.state_directory,
            lambda event: self._requests.revoke(event),
            on_told=self._pass_on_tokens,
        )
        models = config.known_models()
        self._core = MessageRouter(config, SystemRandomness(), models)
        secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        self._pair = self._make_pair(models, secret)
        driven = self._core if self._pair is None else self._pair.core
        self._running: CoreNode[Any, Any] = CoreNode(
            node, driven, self._carry_out, log, clock=BootClock(), after=self._look
        )
        self._runner = self._running.runner
        access = ClientAccess(config.operators, None if tokens is None else tokens.gate.verify)
        self._requests = ClientRequests(config, self._core, self._running, access, self._pair)
        self._links = ClientLinks(
            config,
            access,
            self._requests,
            secret=secret,
            tls=server_context(config.control.tls),
            counters=node.counters("assured.links"),
            is_crowded=self._is_crowded,
        )
        self._requests.use(self._links)
        self._disk: LiveDisk | None = None
        self._is_settled = asyncio.Event()  # the role is known, and on the disk
        self._is_serving = False
        node.add("port", start=self._links.bind)
        node.add_tokens()
        node.add("first tokens", start=self._running.await_tokens)
        topic = f"penstock.router.{config.name}.{{}}"
        add_accounts(node, config.accounts, "assured.accounts", topic, self._accounts, router=config.name)
        node.add("disk", start=self._recover, close=self._close_disk)
        node.add("core", close=self._runner.stop)
        if self._pair is not None:
            node.add("peer", close=self._pair.close)
        node.add("clients", start=self._links.start, close=self._links.close)
        node.add("service", start=self._begin, close=self._end)
        self._running.watch_rights(access, lambda party, error: self._links.refuse(party.number, REFUSALS.of(error)))
        node.show(
            self.status, self._health, gauges=lambda: gauges_of(self.status()), rows=lambda: rows_of(self.status())
        )

    # From start to shutdown

    async def _recover(self) -> None:
        """Pass all records of the journal to the core, before any client can connect."""
        began = time.monotonic()
        directory = _made(Path(self.config.state_directory))
        counters = self.node.counters("assured.journal")
        reserve = reserve_of(directory / "reserve", self.config.reserve_bytes)
        inline = None
        if self.config.pair is None:  # in a pair, the other router would consider it dead
            inline = RouterInlineCommit(self._core, self._links, self._runner.failed.done)
        disk = self._disk = LiveDisk(
            directory / "journal",
            self.config.journal,
            counters,
            self._requests.tell,
            reserve=reserve,
            after_inline_commit=None if inline is None else inline.run,
        )
        records = 0
        for batch in disk.replay():
            records += len(batch)
            self._runner.handle(events.Replay(batch.data, batch.rows))
            await asyncio.sleep(0)
        self._runner.handle(events.Start(disk.next_sequence, time.time_ns()))
        await stopped_or_failed(self._is_settled, self._runner.failed)
        if self._running.has_failed:
            raise self._runner.failed.result()
        log.info("recovered", records=records, ms=round(1_000 * (time.monotonic() - began)))

    async def _close_disk(self) -> None:
        if self._disk is not None:
            await self._disk.close()

    async def _begin(self) -> None:
        if self._pair is not None:
            await self._pair.start()
            for task in self._pair.tasks:
                self.node.watch(task)
        self._is_serving = True
        log.info("router_started", name=self.config.name, port=self._links.port, epoch=self._core.epoch)

    async def _end(self) -> None:
        """After the other router of a pair has taken over."""
        try:
            if self._pair is not None and self._is_serving and not self.node.has_failed:
                await self._pair.hand_over()
        finally:
            if not self._running.has_failed and self._disk is not None:
                self._runner.handle(events.Stop("the router ends"))

    @property
    def control_port(self) -> int:
        return self._links.port

    @property
    def place(self) -> str:
        """The address where clients connect."""
        return self._requests.place

    # Instructions of the core

    def _carry_out(self, instruction: PairInstruction) -> None:
        match instruction:
            case events.SendData(link, data):
                self._links.send(link, data)
            case events.Append():
                self._open_disk.append(instruction)
            case events.SendMessage(link, message):
                if isinstance(message, Refused) and message.code == "not_active":
                    message = msgspec.structs.replace(message, place=self._requests.other_place)
                self._links.say(link, message)
            case events.ReadRecords():
                self._open_disk.read(instruction)
            case events.RemoveBefore(sequence):
                self._open_disk.remove_before(sequence)
            case PeerSend() | PeerEnd() | Tell() | Keep():
                assert self._pair is not None
                self._pair.carry_out(instruction)
            case events.EndLink(link, "not_active") if self._pair is not None:
                self._requests.step_down(link)
            case events.EndLink(link, code, what):
                self._links.refuse(link, Refused(code, what[:256]))
            case events.Became(role, epoch):
                self._is_settled.set()
                log.info("router_became", role=role, epoch=epoch)
            case events.Noted():
                self._note(instruction)
        if not self._is_crowded():
            self._links.release()

    def _look(self) -> None:
        if self._pair is not None:
            self._pair.look()

    @property
    def _open_disk(self) -> LiveDisk:
        assert self._disk is not None
        return self._disk

    def _is_crowded(self) -> bool:
        return self._disk is not None and self._disk.backlog_bytes > self.config.backlog_bytes_max

    def _note(self, noted: events.Noted) -> None:
        self._running.note(noted.what, noted.values)
        say = log.warning if noted.is_trouble else log.info
        say(noted.what, **noted.values)

    def _pass_on_tokens(self, state: TokenState) -> None:
        if self._pair is not None:
            self._pair.tell_tokens(state)

    # Status

    def status(self) -> RouterStatus:
        """May be called in any thread."""
        return RouterStatus(
            name=self.config.name,
            kind="router",
            role=role_of(self._core),
            epoch=self._core.epoch,
            control_port=self._links.port,
            clients=self._links.count,
            is_storing=self._disk is None or self._disk.is_storing,
            is_in_touch=self.node.is_in_touch,
            endpoints=endpoints_of(self._core),
            happenings=self._running.happenings(),
            replication=None if self._pair is None else self._pair.status(),
        )

    def _health(self) -> Health:
        status = self.status()
        return Health(status.is_storing, detail_of(status))

    def _make_pair(self, models: Mapping[int, MessageModel], secret: Secret | None) -> LivePair | None:
        if self.config.pair is None:
            return None
        counters = self.node.counters("assured.pair")
        return LivePair(
            self.config.pair,
            self._core,
            Path(self.config.state_directory),
            lambda event: self._runner.handle(event),
            lambda link, message: self._links.say(link, message),
            peer_settings_of(self.config, models, secret, self.node.tokens),
            counters,
        )

    async def _accounts(self) -> Iterable[Account]:
        """None before the journal is replayed: a failed start closes no accounts of an earlier run."""
        return list(account_rows(self._core, self._links.count)) if self._is_settled.is_set() else []


def _made(directory: Path) -> Path:
    try:
        make_directory(directory)
    except OSError as error:
        raise ConfigurationError(f"cannot create the directory: {error.strerror}", where=str(directory)) from None
    return directory
