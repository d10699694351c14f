"""The control connections of a node: consumers say what they want, and sessions are brought their events."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar

import msgspec

from penstock.base.counters import Counters
from penstock.base.errors import ModelError, PenstockError, RevokedError, TokenError, TokenExpiredError
from penstock.base.log import logger
from penstock.engine import control
from penstock.engine.control import CONNECTION, PROTOCOL, RefusalCode
from penstock.engine.core import events
from penstock.model import MessageModel
from penstock.net.control_driver import ControlServer
from penstock.net.letters import Letters as AnyLetters
from penstock.net.letters import converse
from penstock.net.secret import Secret
from penstock.net.stream_server import Through
from penstock.plant.access import Access
from penstock.plant.carried import carried_at
from penstock.plant.chaining import Chained
from penstock.plant.config import NodeConfig
from penstock.plant.datapath import DataPath
from penstock.plant.desk import Desk, Party, RefusalError, check_number, refusal_of
from penstock.plant.rights import Rights
from penstock.plant.snapshots import snapshot

EXPIRY_CHECK_SECONDS = 0.5
LOGIN_SECONDS = 10.0
"""From the end of the handshake."""

Letters: TypeAlias = AnyLetters[control.NodeMessage]

T = TypeVar("T")

log = logger("plant.control")


class Sources(Protocol):
    """Where a node looks that does not have something itself."""

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]: ...

    async def model(self, model_id: int, version: int) -> str: ...


class Connection(Protocol):
    """To a consumer: a control connection, or a WebSocket that is used like one."""

    @property
    def address(self) -> str: ...

    @property
    def is_over(self) -> bool: ...

    @property
    def transport(self) -> asyncio.WriteTransport: ...

    async def send(self, message: control.ControlMessage, /) -> None: ...

    async def receive(self) -> control.ControlMessage | None: ...

    def __aiter__(self) -> AsyncIterator[control.ControlMessage]: ...


class NodeServer(ControlServer):
    """Serves consumers until close(); beyond the loopback address it needs `tls` and `secret`."""

    def __init__(
        self,
        config: NodeConfig,
        desk: Desk,
        data: DataPath,
        access: Access,
        sources: Sources,
        handover_path: str,
        *,
        epoch: int,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        counters: Counters,
        through: Through | None = None,
    ) -> None:
        self._node = config
        self._desk = desk
        self._data = data
        self._access = access
        self._sources = sources
        self._handover_path = handover_path
        self._epoch = epoch
        self._letters: dict[int, Letters] = {}  # by consumer
        self._outgoing: dict[int, asyncio.Queue[bytes]] = {}  # of sessions
        self._chained = Chained(config.datagrams, desk, data, counters)
        super().__init__(
            PROTOCOL,
            self.converse_with,
            node=config.name,
            host=config.control.host,
            port=config.control.port,
            secret=secret,
            tls=tls,
            config=msgspec.structs.replace(CONNECTION, connections_max=2 * config.engine.consumers_max),
            counters=counters,
            through=through,
        )

    # From others, in the loop's thread

    def events_ready(self, consumer: int, data: bytes) -> None:
        if (outgoing := self._outgoing.get(consumer)) is not None:
            outgoing.put_nowait(data)

    def tell(self, consumer: int, message: control.OpenRegion) -> None:
        if (letters := self._letters.get(consumer)) is not None:
            letters.put(message)

    def revoke(self, subscription_id: str, reason: str) -> None:
        """Rights are taken back: of consumers here, and of those of nodes below."""
        for each in self._desk.bearers(subscription_id):
            self._end(each, RevokedError(f"the subscription was revoked: {reason}"))
        for number, letters in self._letters.items():
            if (party := self._desk.parties.get(number)) is not None and party.is_node:
                letters.put(control.Withdrawn(subscription_id, reason[:256]))

    def end(self, consumer: int, error: PenstockError) -> None:
        """Serve this one no longer."""
        if (party := self._desk.parties.get(consumer)) is not None:
            self._end(party, error)

    async def watch_rights(self) -> None:
        """End those whose rights expire, for ever."""
        while True:
            for each in self._desk.expired(time.time_ns()):
                self._end(each, TokenExpiredError("the token has expired", hint="renew it in time"))
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)

    async def close(self) -> None:
        for letters in self._letters.values():
            letters.end(control.Refused(RefusalCode.STOPPING, "the node stops"))
        await super().close()
        await asyncio.to_thread(self._chained.close)

    def _end(self, party: Party, error: PenstockError) -> None:
        log.warning("consumer_ended", consumer=party.name, code=error.code, why=str(error))
        if (letters := self._letters.get(party.number)) is not None:
            letters.end(refusal_of(error))
            # at once, however long the consumer takes for its last words
            self._data.ask(lambda: self._data.detach(party))

    # One connection

    async def converse_with(self, connection: Connection) -> None:
        """From its first message to its end."""
        too_slow = control.Refused(RefusalCode.LIMIT, "the consumer does not listen to what it is told")
        letters = Letters(self._node.told_max, too_slow)
        await converse(connection, letters, self._hear(connection, letters))

    async def _hear(self, connection: Connection, letters: Letters) -> None:
        with contextlib.suppress(PenstockError):  # why a connection ended is the connection's to log
            try:
                async with asyncio.timeout(LOGIN_SECONDS):
                    first = await connection.receive()
            except TimeoutError:
                letters.end(control.Refused(RefusalCode.PROTOCOL, f"there was no login within {LOGIN_SECONDS:g} s"))
                return
            if isinstance(first, control.Login):
                await self._serve_consumer(connection, letters, first)
            elif first is not None:
                letters.end(control.Refused(RefusalCode.PROTOCOL, "the first message is a login"))

    async def _serve_consumer(self, connection: Connection, letters: Letters, login: control.Login) -> None:
        try:
            party = self._desk.enter(connection.address.rpartition(":")[0], login)
        except PenstockError as error:
            self._refuse(letters, login.name, error)
            return
        self._letters[party.number] = letters
        sending: asyncio.Future[None] | None = None
        try:
            await self._attach(party, letters)
            if party.transport == "session" and (place := carried_at(connection)) is not None:
                await self._ask(lambda: self._data.carry(party.number, *place))
            elif party.transport == "session":
                sending = asyncio.ensure_future(self._bring_events(connection, party.number))
            async for request in connection:
                await self._answer(party, request, letters)
        except RefusalError as error:
            self._refuse(letters, party.name, error)
        finally:
            if sending is not None:
                sending.cancel()
            await asyncio.shield(self._detach(party))

    async def _attach(self, party: Party, letters: Letters) -> None:
        try:
            party.rights = await self._access.admit(party.name, party.token, time.time_ns())
            sender = await self._ask(lambda: self._chained.open(party)) if party.transport == "datagram" else None
            if party.transport == "session":
                self._outgoing[party.number] = asyncio.Queue()
            placed = await self._ask(lambda: self._data.attach(party, sender))
        except PenstockError as error:
            raise _final(error) from None
        welcome = control.Welcome(
            self._node.name,
            self._epoch,
            party.number,
            list(party.classes),
            rate_max=self._desk.rate_max,
            grants=party.rights.patterns()[: control.GRANTS_MAX],
            path=self._handover_path if placed.ring else "",
            ring=placed.ring,
            notices=placed.notices,
        )
        letters.put(welcome if sender is None else sender.introduce(welcome))
        self.counters.add("consumers_attached")
        log.info("consumer_attached", consumer=party.name, transport=party.transport, host=party.host)

    async def _detach(self, party: Party) -> None:
        """The consumer is gone, however that happened; until this has been carried out, its name is taken."""
        with contextlib.suppress(PenstockError):  # the node has stopped: everybody is detached
            await self._ask(lambda: self._data.detach(party))
            if (sender := await self._ask(lambda: self._chained.leave(party))) is not None:
                await asyncio.to_thread(sender.close)
        self._letters.pop(party.number, None)
        self._outgoing.pop(party.number, None)
        self._desk.leave(party)
        log.info("consumer_detached", consumer=party.name)

    async def _bring_events(self, connection: Connection, consumer: int) -> None:
        outgoing = self._outgoing[consumer]
        with contextlib.suppress(PenstockError):  # it has ended, and whoever hears it knows why
            while True:
                await connection.send(control.Events(await outgoing.get()))
                await self._ask(lambda: self._data.sent(consumer))

    # Requests

    async def _answer(self, party: Party, request: control.ControlMessage, letters: Letters) -> None:
        """Do what is asked, and say that it is done; or refuse it."""
        if isinstance(request, control.Missed):
            missed = request
            await self._ask(lambda: self._chained.missed(party, missed))
            return
        number = getattr(request, "number", 0)
        try:
            check_number(number)
            for answer in await self._do(party, request):
                letters.put(answer)
        except PenstockError as error:
            refusal = refusal_of(error, number)
            self.counters.add("requests_refused", cause=refusal.code)
            if refusal.code == RefusalCode.PROTOCOL or (isinstance(error, RefusalError) and error.is_final):
                raise _final(error) from None
            letters.put(refusal)

    async def _do(self, party: Party, request: control.ControlMessage) -> Sequence[control.NodeMessage]:
        match request:
            case control.Subscribe(number):
                return [control.Held(number, await self._subscribe(party, request))]
            case control.Unsubscribe(number, subscription):
                self._desk.subscription(party, subscription)
                await self._ask(lambda: self._release(party, subscription))
                del party.wanted[subscription]
                return [control.Held(number)]
            case control.Modify(number, subscription, per_second):
                return [control.Held(number, await self._modify(party, subscription, per_second))]
            case control.Snapshot(number, topics):
                return await self._snapshot(party, number, topics)
            case control.Overrun(number):
                await self._overrun(party, request)
                return [control.Restarted(number)]
            case control.AskModel(number, model_id, version):
                return [control.ModelDocument(number, await self._sources.model(model_id, version))]
            case control.RenewToken(number, token):
                await self._renew(party, token)
                return [control.Held(number)]
            case control.Vouch(number) if party.is_node:
                return [await self._vouch(request)]
            case _:
                raise RefusalError(RefusalCode.PROTOCOL, f"{type(request).__name__} has no place here")

    async def _subscribe(self, party: Party, request: control.Subscribe) -> float:
        per_second = self._desk.check(party, request)
        topics = (await self._judged(party, request.topics)).narrow(request.topics)
        await self._ask(lambda: self._hold(party, request, topics, per_second))
        party.wanted[request.number] = request
        return per_second

    def _hold(self, party: Party, request: control.Subscribe, topics: Sequence[str], per_second: float) -> None:
        self._data.handle(self._event(party, request, topics, per_second))
        self._chained.subscribed(party, request, topics)

    def _release(self, party: Party, subscription: int) -> None:
        self._data.handle(events.Unsubscribe(party.number, subscription))
        self._chained.unsubscribed(party, subscription)

    def _event(
        self, party: Party, request: control.Subscribe, topics: Sequence[str], per_second: float
    ) -> events.Subscribe:
        after = request.after if request.epoch == self._epoch else 0
        return events.Subscribe(party.number, request.number, topics, request.cls, per_second, after)

    async def _modify(self, party: Party, subscription: int, per_second: float) -> float:
        request = self._desk.subscription(party, subscription)
        granted = self._desk.granted_rate(request.cls, per_second)
        await self._handle(events.Modify(party.number, subscription, granted))
        party.wanted[subscription] = msgspec.structs.replace(request, per_second=per_second)
        return granted

    async def _snapshot(self, party: Party, number: int, topics: Sequence[str]) -> list[control.NodeMessage]:
        blocks = await self._sources.snapshot((await self._judged(party, topics)).narrow(topics))
        return [control.Records(number, block, is_last=block is blocks[-1]) for block in blocks]

    async def _overrun(self, party: Party, request: control.Overrun) -> None:
        if party.transport != "local":
            raise RefusalError(RefusalCode.SEGMENT, "the consumer has no ring")
        await self._handle(events.Overrun(party.number, request.last_number, request.ring))

    async def _judged(self, party: Party, topics: Sequence[str]) -> Rights:
        assert party.rights is not None, "admitted before it can ask"
        return await self._access.judge(party.name, party.token, party.rights, topics)

    async def _renew(self, party: Party, token: str) -> None:
        before = party.rights
        try:
            after = await self._access.admit(party.name, token, time.time_ns())
            if before is not None and after.subject != before.subject:
                raise TokenError("the new token is somebody else's")
            self._chained.check_rights(party, after.text)
            party.rights, party.token = after, token
            if before is not None and after.text != before.text:
                await self._regrant(party, after)
        except PenstockError as error:
            raise _final(error) from None  # without a right there is nothing to go on with

    async def _regrant(self, party: Party, rights: Rights) -> None:
        """Other rights: each subscription is made anew with what is granted of it now, or ends."""
        wanted, party.wanted = party.wanted, {}
        for number in wanted:
            await self._handle(events.Unsubscribe(party.number, number, is_told=False))
        await self._ask(lambda: self._data.regrant(party))
        for number, request in wanted.items():
            with contextlib.suppress(PenstockError):
                topics = rights.narrow(request.topics)
                per_second = self._desk.granted_rate(request.cls, request.per_second)
                await self._handle(self._event(party, request, topics, per_second))
                party.wanted[number] = request

    async def _vouch(self, request: control.Vouch) -> control.Vouched:
        """For a consumer of a node below."""
        rights = await self._access.admit(request.name, request.token, time.time_ns())
        if request.topics:
            (await self._access.judge(request.name, request.token, rights, request.topics)).narrow(request.topics)
        return control.Vouched(
            request.number,
            rights.subject,
            rights.subscription_id,
            rights.expires_ns,
            rights.patterns()[: control.GRANTS_MAX],
        )

    def _refuse(self, letters: Letters, name: str, error: PenstockError) -> None:
        refusal = refusal_of(error)
        self.counters.add("consumers_refused", cause=refusal.code)
        log.warning("consumer_refused", consumer=name, code=refusal.code, why=refusal.reason)
        letters.end(refusal)

    async def _handle(self, event: events.EngineEvent) -> None:
        await self._ask(lambda: self._data.handle(event))

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._data.ask(question))


class OwnSources:
    """A plant has everything itself."""

    def __init__(self, data: DataPath, models: dict[int, MessageModel], items_max: int) -> None:
        self._data = data
        self._models = models
        self._items_max = items_max

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]:
        return await asyncio.wrap_future(self._data.ask(lambda: snapshot(self._data.engine, topics, self._items_max)))

    async def model(self, model_id: int, version: int) -> str:
        model = self._models.get(model_id)
        if model is None or not model.text:
            raise ModelError(f"no model has the id {model_id} here")
        return model.text


def _final(error: PenstockError) -> RefusalError:
    """The connection ends with it."""
    refusal = refusal_of(error)
    return RefusalError(RefusalCode(refusal.code), error.what, hint=error.hint, is_final=True)
