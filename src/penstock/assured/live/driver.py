"""A live message router: everything of it in one process, from its configuration to its end.

    router = LiveRouter(config)
    await router.start()
    await router.run(stop)

The core and its links (doors.py) are in the loop's thread; bringing records to the disk and reading them (disk.py),
tokens and metrics have threads of their own.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.assured.core.lease.protocol import Keep, Tell
from penstock.assured.core.pair.protocol import PairInstruction, PeerEnd, PeerSend
from penstock.assured.core.router import events
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.live.config import RouterNodeConfig
from penstock.assured.live.desk import Desk, Rights, refusal_of
from penstock.assured.live.disk import LiveDisk
from penstock.assured.live.doors import RouterLinks
from penstock.assured.live.inline_commit import RouterInlineCommit
from penstock.assured.live.observation import endpoints_of, role_of
from penstock.assured.live.pair import LivePair
from penstock.assured.live.peer_settings import peer_settings_of
from penstock.assured.live.recorder import RouterRecorder
from penstock.assured.live.reserve import reserve_of
from penstock.assured.live.status import Happening, RouterStatus, detail_of, gauges_of, rows_of
from penstock.assured.live.translating import event_of, message_of, news_of
from penstock.assured.wire.control import (
    Degrade,
    EndpointInfo,
    Endpoints,
    ListEndpoints,
    Login,
    Message,
    Refused,
    RenewToken,
    SteppedDown,
    Switch,
    Welcome,
)
from penstock.base.clock import BootClock, SystemRandomness
from penstock.base.counters import Counters
from penstock.base.endpoint import Health
from penstock.base.errors import ConfigurationError, PenstockError, TokenError, TokenExpiredError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.base.metrics import Metrics
from penstock.model import MessageModel
from penstock.net.agent import CoreRunner, NodeLife, stopped_or_failed
from penstock.net.page_access import page_of
from penstock.net.secret import Secret, read_secret
from penstock.net.tls import server_context
from penstock.security.brokering import Revoked
from penstock.security.client import AdminClient
from penstock.security.gate import TokenState
from penstock.security.token_watch import TokenWatch

EXPIRY_CHECK_SECONDS = 0.5
TOKEN_SECONDS = 5.0
HAPPENINGS_MAX = 200

log = logger("assured")


class LiveRouter:
    """One router. After start() `status()` says everything; run() ends when it is told to, or raises why it must."""

    def __init__(self, config: RouterNodeConfig) -> None:
        self.config = config
        self._life = NodeLife()
        self._metrics = Metrics()
        self._tokens = self._make_tokens()
        models = config.known_models()
        self._core = MessageRouter(config, SystemRandomness(), models)
        secret = read_secret(Path(config.control.secret_file)) if config.control.secret_file else None
        self._pair = self._make_pair(models, secret)
        driven = self._core if self._pair is None else self._pair.core
        self._runner: CoreRunner[Any, Any] = CoreRunner(driven, self._carry_out, clock=BootClock(), after=self._look)
        self._runner.failed.add_done_callback(self._core_failed)
        self._desk = Desk(config.operators, None if self._tokens is None else self._tokens.gate.verify)
        self._links = RouterLinks(
            config,
            self._desk,
            self,
            secret=secret,
            tls=server_context(config.control.tls),
            counters=self._counted("assured.links"),
            is_crowded=self._is_crowded,
        )
        self._storing: LiveDisk | None = None
        self._recorder: RouterRecorder | None = None
        self._is_settled = asyncio.Event()  # the role is known, and on the disk
        self._happenings: deque[Happening] = deque(maxlen=HAPPENINGS_MAX)
        self._tasks: list[asyncio.Task[None]] = []
        self._endpoint = page_of(config, self._metrics, self._health, self.status)
        self._metrics.show_gauges(lambda: gauges_of(self.status()))
        self._metrics.show_rows(lambda: rows_of(self.status()))

    # Its life

    async def start(self) -> None:
        try:
            await self._links.bind()
            if self._tokens is not None:
                self._tokens.start()
                await asyncio.to_thread(self._tokens.wait, TOKEN_SECONDS)
            await self._recover()
            self._recorder = self._make_recorder()
            await self._links.start()
            if self._pair is not None:
                await self._pair.start()
                for task in self._pair.tasks:
                    self._life.watch(task)
            self._endpoint.start()
        except BaseException:
            await self.close()
            raise
        self._tasks.append(asyncio.ensure_future(self._watch_rights()))
        for task in self._tasks:
            self._life.watch(task)
        log.info("router_started", name=self.config.name, port=self._links.port, epoch=self._core.epoch)

    async def _recover(self) -> None:
        """Everything that the journal has goes into the core, before anybody can connect."""
        began = time.monotonic()
        directory = _made(Path(self.config.state_directory))
        counters = self._counted("assured.journal")
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

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set or something fails; then everything ends in order, after the other router of a pair has
        taken over."""
        await self._life.run(stop, self._leave)

    async def _leave(self) -> None:
        if self._pair is not None and not self._life.has_failed:
            await self._pair.hand_over()
        await self.close()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if not self._runner.failed.done() and self._storing is not None:
            self._runner.handle(events.Stop("the router ends"))
        await self._links.close()
        if self._pair is not None:
            await self._pair.close()
        self._runner.stop()
        if self._storing is not None:
            await self._storing.close()
        if self._recorder is not None:
            await self._recorder.close()
        if self._tokens is not None:
            await asyncio.to_thread(self._tokens.stop)
        await asyncio.to_thread(self._endpoint.stop)

    @property
    def endpoint_url(self) -> str:
        return self._endpoint.url

    @property
    def control_port(self) -> int:
        return self._links.port

    @property
    def place(self) -> str:
        """Where clients connect."""
        return self.config.control.advertised or f"{self.config.control.host}:{self._links.port}"

    # What clients say

    def arrived(self, link: int, login: Login, rights: Rights) -> None:
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
                if not self._desk.rights_of(link).is_operator:
                    self._links.say(link, Refused("not_entitled", "this is an operator's to order", number))
                elif self._pair is None:
                    self._links.say(link, Refused("not_active", "this router runs alone", number))
                else:
                    self._pair.order(link, message)
            case _:
                self._tell(event_of(link, message))

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
                self._links.refuse(link, refusal_of(error))

    def _core_failed(self, failed: "asyncio.Future[Exception]") -> None:
        self._life.fail(failed.result())

    # What the core wants

    def _carry_out(self, instruction: PairInstruction) -> None:
        match instruction:
            case events.SendData(link, data):
                self._links.send(link, data)
            case events.Append():
                self._stored.append(instruction)
            case events.Answer(link, request, answer):
                self._links.say(link, message_of(request, answer, self._other_place))
            case events.ReadRecords():
                self._stored.read(instruction)
            case events.RemoveBefore(sequence):
                self._stored.remove_before(sequence)
            case events.EndFlow(link) | events.FlowActive(link) | events.NameEndpoint(link):
                self._links.say(link, news_of(instruction))
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

    def _make_tokens(self) -> TokenWatch | None:
        admin = self.config.admin
        if not admin.url:
            return None
        state = _made(Path(self.config.state_directory))
        client = AdminClient.connect(admin.url, admin.credentials)
        return TokenWatch(client, state / "tokens.json", self._on_revoked, self._on_told)

    def _on_revoked(self, event: Revoked) -> None:
        self._life.call(self._revoke, event)

    def _on_told(self, state: TokenState) -> None:
        if self._pair is not None:
            self._life.call(self._pair.tell_tokens, state)

    def _revoke(self, event: Revoked) -> None:
        for link in self._desk.bearers(event.subscription_id):
            self._links.refuse(link, Refused("revoked", f"its authority was revoked: {event.reason}"[:256]))

    def _renew(self, link: int, token: str) -> None:
        """A token that grants something else is for another link: the client comes again with it."""
        before = self._desk.rights_of(link)
        try:
            rights = self._desk.renew(link, token, time.time_ns())
            if (rights.subject, rights.grants) != (before.subject, before.grants):
                raise TokenError("the newer token grants something else", hint="log in with it")
        except PenstockError as error:
            self._links.refuse(link, refusal_of(error))

    async def _watch_rights(self) -> None:
        while True:
            for link in self._desk.expired(time.time_ns()):
                error = TokenExpiredError("the token has expired", hint="renew it in time")
                self._links.refuse(link, refusal_of(error))
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)

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
            is_in_touch=self._tokens is None or self._tokens.is_in_touch,
            endpoints=endpoints_of(self._core),
            happenings=list(self._happenings),
            replication=None if self._pair is None else self._pair.status(),
        )

    def _health(self) -> Health:
        status = self.status()
        return Health(not self._life.has_failed and status.is_storing, detail_of(status))

    def _make_pair(self, models: Mapping[int, MessageModel], secret: Secret | None) -> LivePair | None:
        if self.config.pair is None:
            return None
        counters = self._counted("assured.pair")
        return LivePair(
            self.config.pair,
            self._core,
            Path(self.config.state_directory),
            lambda event: self._runner.handle(event),
            lambda link, message: self._links.say(link, message),
            peer_settings_of(self.config, models, secret, self._tokens),
            counters,
        )

    def _make_recorder(self) -> RouterRecorder | None:
        if not self.config.accounts.path:
            return None
        counters = self._counted("assured.accounts")
        recorder = RouterRecorder(
            self.config.accounts, self.config.name, self._core, lambda: self._links.count, counters
        )
        recorder.start()
        self._tasks.append(asyncio.ensure_future(recorder.keep()))
        return recorder

    def _counted(self, component: str) -> Counters:
        counters = Counters(component, node=self.config.name)
        self._metrics.register(counters)
        return counters


def _made(directory: Path) -> Path:
    try:
        make_directory(directory)
    except OSError as error:
        raise ConfigurationError(f"no directory can be made there: {error.strerror}", where=str(directory)) from None
    return directory
