"""A live message router: everything of it in one process, from its configuration to its end.

    router = LiveRouter(config)
    await router.node.start()
    await router.node.run(stop)

The core and its links (client_links.py) are in the loop's thread; writing records to the disk and reading them
(disk.py), tokens and metrics have their own threads.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from penstock.assured.core.lease.protocol import Keep, Tell
from penstock.assured.core.pair.protocol import PairInstruction, PeerEnd, PeerSend
from penstock.assured.core.router import events
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.live.access import REFUSALS, ClientAccess, ClientRights
from penstock.assured.live.account_rows import account_rows
from penstock.assured.live.client_links import ClientLinks
from penstock.assured.live.config import RouterNodeConfig
from penstock.assured.live.disk import LiveDisk
from penstock.assured.live.inline_commit import RouterInlineCommit
from penstock.assured.live.observation import endpoints_of, role_of
from penstock.assured.live.pair import LivePair
from penstock.assured.live.peer_settings import peer_settings_of
from penstock.assured.live.reserve import reserve_of
from penstock.assured.live.status import Happening, RouterStatus, detail_of, gauges_of, rows_of
from penstock.assured.wire.control import (
    Degrade,
    EndpointInfo,
    Endpoints,
    ListEndpoints,
    Login,
    Message,
    Refused,
    RenewToken,
    RouterRequest,
    SteppedDown,
    Switch,
    Welcome,
)
from penstock.base.clock import BootClock, SystemRandomness
from penstock.base.endpoint import Health
from penstock.base.errors import ConfigurationError, PenstockError, RemoteProtocolError, TokenError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.model import MessageModel
from penstock.net.live.agent import CoreRunner, stopped_or_failed
from penstock.net.secret import Secret, read_secret
from penstock.net.tls import server_context
from penstock.runtime.access import watch_expiry
from penstock.runtime.accounts import Account, add_accounts
from penstock.runtime.node import Node
from penstock.security.core.brokering import Revoked
from penstock.security.live.gate import TokenState

TOKEN_SECONDS = 5.0
HAPPENINGS_MAX = 200

log = logger("assured")


class LiveRouter:
    """One router. `node` starts and closes it; after the start `status()` describes it."""

    def __init__(self, config: RouterNodeConfig) -> None:
        self.config = config
        self.node = node = Node(config)
        if config.admin.url:
            _made(Path(config.state_directory))
        tokens = node.watch_tokens(config.admin, config.state_directory, self._revoke, on_told=self._pass_on_tokens)
        models = config.known_models()
        self._core = MessageRouter(config, SystemRandomness(), models)
        secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        self._pair = self._make_pair(models, secret)
        driven = self._core if self._pair is None else self._pair.core
        self._runner: CoreRunner[Any, Any] = CoreRunner(driven, self._carry_out, clock=BootClock(), after=self._look)
        self._runner.failed.add_done_callback(self._core_failed)
        self._access = ClientAccess(config.operators, None if tokens is None else tokens.gate.verify)
        self._links = ClientLinks(
            config,
            self._access,
            self,
            secret=secret,
            tls=server_context(config.control.tls),
            counters=node.counters("assured.links"),
            is_crowded=self._is_crowded,
        )
        self._storing: LiveDisk | None = None
        self._is_settled = asyncio.Event()  # the role is known, and on the disk
        self._happenings: deque[Happening] = deque(maxlen=HAPPENINGS_MAX)
        self._is_serving = False
        node.add("port", start=self._links.bind)
        node.add_tokens()
        node.add("first tokens", start=self._await_tokens)
        topic = f"penstock.router.{config.name}.{{}}"
        add_accounts(node, config.accounts, "assured.accounts", topic, self._accounts, router=config.name)
        node.add("disk", start=self._recover, close=self._close_disk)
        node.add("core", close=self._runner.stop)
        if self._pair is not None:
            node.add("peer", close=self._pair.close)
        node.add("clients", start=self._links.start, close=self._links.close)
        node.add("service", start=self._begin, close=self._end)
        node.add_task(self._watch_rights)
        node.show(
            self.status, self._health, gauges=lambda: gauges_of(self.status()), rows=lambda: rows_of(self.status())
        )

    # From start to shutdown

    async def _await_tokens(self) -> None:
        if (tokens := self.node.tokens) is not None:
            await asyncio.to_thread(tokens.wait, TOKEN_SECONDS)

    async def _recover(self) -> None:
        """Everything that the journal has goes into the core, before anybody can connect."""
        began = time.monotonic()
        directory = _made(Path(self.config.state_directory))
        counters = self.node.counters("assured.journal")
        reserve = reserve_of(directory / "reserve", self.config.reserve_bytes)
        storing = self._storing = LiveDisk(
            directory / "journal", self.config.journal, counters, self._tell, reserve=reserve
        )
        if self.config.pair is None:  # one of a pair that stands still is taken for dead
            storing.after_inline_commit = RouterInlineCommit(
                self._core, self._links, storing, self._runner.failed.done
            ).run
        records = 0
        for batch in storing.replay():
            records += len(batch)
            self._runner.handle(events.Replay(batch.data, batch.rows))
            await asyncio.sleep(0)
        self._runner.handle(events.Start(storing.next_sequence, time.time_ns()))
        await stopped_or_failed(self._is_settled, self._runner.failed)
        if self._runner.failed.done():
            raise self._runner.failed.result()
        log.info("recovered", records=records, ms=round(1_000 * (time.monotonic() - began)))

    async def _close_disk(self) -> None:
        if self._storing is not None:
            await self._storing.close()

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
            if not self._runner.failed.done() and self._storing is not None:
                self._runner.handle(events.Stop("the router ends"))

    @property
    def control_port(self) -> int:
        return self._links.port

    @property
    def place(self) -> str:
        """Where clients connect."""
        return self.config.control.advertised or f"{self.config.control.host}:{self._links.port}"

    # What clients say

    def arrived(self, link: int, login: Login, rights: ClientRights) -> None:
        core = self._core
        if login.role == "client" and not core.is_active:
            self._step_down(link)
            return
        if login.role == "client" and login.epoch > core.epoch:  # it knows of a router that has taken over since
            self._links.refuse(link, Refused("stale", f"{self.config.name} is of epoch {core.epoch}"))
            return
        places = tuple(each for each in (self.place, self._other_place) if each)
        self._links.say(
            link, Welcome(self.config.name, role_of(core), core.epoch, places, self.config.message_bytes_max)
        )
        self._tell(events.LinkOpened(link, rights.subject, rights.grants, rights.is_operator, rights.may_define))

    def _step_down(self, link: int) -> None:
        """Clients are the active router's. What is still on its way to them here is not delivered any more."""
        self._links.dismiss(link, SteppedDown(self._core.epoch, self._other_place))

    @property
    def _other_place(self) -> str:
        return self.config.pair.clients if self.config.pair is not None else ""

    def brought(self, link: int, data: bytes) -> None:
        self._tell(events.Data(link, data))

    def left(self, link: int) -> None:
        self._tell(events.LinkClosed(link))

    def said(self, link: int, message: Message) -> None:
        match message:
            case RenewToken(token):
                self._renew(link, token)
            case ListEndpoints(number, name):
                self._links.say(link, Endpoints(number, self._endpoints_for(link, name)))
            case Switch(number) | Degrade(number):
                if not self._access.rights_of(link).is_operator:
                    self._links.say(link, Refused("not_entitled", "this is an operator's to order", number))
                elif self._pair is None:
                    self._links.say(link, Refused("not_active", "this router runs alone", number))
                else:
                    self._pair.order(link, message)
            case _ if isinstance(message, RouterRequest):
                self._tell(events.RequestReceived(link, message))
            case _:
                raise RemoteProtocolError(f"a {type(message).__name__}, which no client says")

    def _endpoints_for(self, link: int, name: str) -> tuple[EndpointInfo, ...]:
        """Those that it may consume from."""
        if (client := self._core.links.get(link)) is None:
            return ()
        return tuple(each for each in endpoints_of(self._core, name) if client.may_consume(each.endpoint.name))

    def _tell(self, event: events.Event) -> None:
        try:
            self._runner.handle(event)
        except PenstockError as error:  # a client's mistake: it is told, and counted
            log.warning("event_refused", what=type(event).__name__, code=error.code, error=str(error))
            if (link := getattr(event, "link", 0)) and not isinstance(event, events.LinkClosed):
                self._links.refuse(link, REFUSALS.of(error))

    def _core_failed(self, failed: "asyncio.Future[Exception]") -> None:
        self.node.fail(failed.result())

    # What the core wants

    def _carry_out(self, instruction: PairInstruction) -> None:
        match instruction:
            case events.SendData(link, data):
                self._links.send(link, data)
            case events.Append():
                self._stored.append(instruction)
            case events.SendMessage(link, message):
                if isinstance(message, Refused) and message.code == "not_active":
                    message = msgspec.structs.replace(message, place=self._other_place)
                self._links.say(link, message)
            case events.ReadRecords():
                self._stored.read(instruction)
            case events.RemoveBefore(sequence):
                self._stored.remove_before(sequence)
            case PeerSend() | PeerEnd() | Tell() | Keep():
                assert self._pair is not None
                self._pair.carry_out(instruction)
            case events.EndLink(link, "not_active") if self._pair is not None:
                self._step_down(link)
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
    def _stored(self) -> LiveDisk:
        assert self._storing is not None
        return self._storing

    def _is_crowded(self) -> bool:
        return self._storing is not None and self._storing.backlog_bytes > self.config.backlog_bytes_max

    def _note(self, noted: events.Noted) -> None:
        self._happenings.append(Happening(time.time_ns(), noted.what, noted.values))
        say = log.warning if noted.is_trouble else log.info
        say(noted.what, **noted.values)

    # What clients may do

    def _pass_on_tokens(self, state: TokenState) -> None:
        if self._pair is not None:
            self._pair.tell_tokens(state)

    def _revoke(self, event: Revoked) -> None:
        for party in self._access.bearers(event.subscription_id):
            self._links.refuse(party.number, Refused("revoked", f"its authority was revoked: {event.reason}"[:256]))

    def _renew(self, link: int, token: str) -> None:
        """A token that grants something else is for another link: the client comes again with it."""
        before = self._access.rights_of(link)
        try:
            rights = self._access.renew(link, token, time.time_ns())
            if (rights.subject, rights.grants) != (before.subject, before.grants):
                raise TokenError("the newer token grants something else", hint="log in with it")
        except PenstockError as error:
            self._links.refuse(link, REFUSALS.of(error))

    async def _watch_rights(self) -> None:
        await watch_expiry(self._access, lambda party, error: self._links.refuse(party.number, REFUSALS.of(error)))

    # How it is

    def status(self) -> RouterStatus:
        """May be called in any thread."""
        return RouterStatus(
            name=self.config.name,
            kind="router",
            role=role_of(self._core),
            epoch=self._core.epoch,
            control_port=self._links.port,
            clients=self._links.count,
            is_storing=self._storing is None or self._storing.is_storing,
            is_in_touch=self.node.is_in_touch,
            endpoints=endpoints_of(self._core),
            happenings=list(self._happenings),
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
        raise ConfigurationError(f"no directory can be made there: {error.strerror}", where=str(directory)) from None
    return directory
