"""The control connections of a filter module: applications say what they want, and are told what becomes of it."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import LimitError, PenstockError, RevokedError, TokenExpiredError
from penstock.base.log import logger
from penstock.filter import control
from penstock.filter.control import CONNECTION, PROTOCOL, RefusalCode
from penstock.filter.datapath import DataPath, Placed
from penstock.filter.desk import Desk, RefusalError, Registrant, check_number, refusal_of
from penstock.filter.events import Collision, Detach, ForgetModels, LearnModel, StreamOver, StreamPosition, Tell, Want
from penstock.filter.module_config import FilterModuleConfig
from penstock.net.control_driver import ControlConnection, ControlServer
from penstock.net.handover import await_segment
from penstock.net.letters import Letters as AnyLetters
from penstock.net.letters import converse
from penstock.net.secret import Secret

EXPIRY_CHECK_SECONDS = 0.5
ID_BITS = 64

T = TypeVar("T")

log = logger("filter.control")


Letters: TypeAlias = AnyLetters[control.FilterMessage]


class ApplicationServer(ControlServer):
    """Serves applications and publishers until close(); beyond the loopback address it needs `tls` and `secret`."""

    def __init__(
        self,
        config: FilterModuleConfig,
        desk: Desk,
        data: DataPath,
        handover_path: str,
        *,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        counters: Counters,
    ) -> None:
        self._module = config
        self._desk = desk
        self._data = data
        self._handover_path = handover_path
        self._letters: dict[int, Letters] = {}  # by application
        self._publishers: dict[int, Letters] = {}
        self._publisher_count = 0
        self._secret = secret
        self._randomness = SystemRandomness()
        self._placed: dict[int, Placed] = {}
        super().__init__(
            PROTOCOL,
            self._converse_with,
            node=config.name,
            host=config.control.host,
            port=config.control.port,
            secret=secret,
            tls=tls,
            config=CONNECTION,
            counters=counters,
        )

    # From others, in the loop's thread

    def tell(self, tell: Tell) -> None:
        letters = self._letters.get(tell.application)
        if letters is not None:
            letters.put(_message_of(tell))

    def revoke(self, subscription_id: str, reason: str) -> None:
        for each in self._desk.bearers(subscription_id):
            self._end(each, RevokedError(f"the subscription was revoked: {reason}"))

    def ring_lost(self, number: int, error: PenstockError) -> None:
        """A publisher's ring cannot be read any more."""
        if (letters := self._publishers.get(number)) is not None:
            letters.end(refusal_of(error))

    async def watch_tokens(self) -> None:
        """End those whose tokens expire, for ever."""
        while True:
            for each in self._desk.expired(time.time_ns()):
                self._end(each, TokenExpiredError("the token has expired", hint="renew it in time"))
            await asyncio.sleep(EXPIRY_CHECK_SECONDS)

    async def close(self) -> None:
        for letters in (*self._letters.values(), *self._publishers.values()):
            letters.end(control.Refused(RefusalCode.STOPPING, "the filter stops"))
        await super().close()

    def placed(self) -> list[tuple[Registrant, Placed]]:
        """The applications that are served, and where."""
        placed = list(self._placed.items())  # in one go: any thread may ask
        found = ((self._desk.registrants.get(number), each) for number, each in placed)
        return [(registrant, each) for registrant, each in found if registrant is not None]

    def _end(self, registrant: Registrant, error: PenstockError) -> None:
        letters = self._letters.get(registrant.application_id)
        log.warning("application_ended", application=registrant.name, code=error.code, why=str(error))
        if letters is not None:
            letters.end(refusal_of(error))
            # at once, however long the application takes for its last words
            self._data.ask(lambda: self._data.handle(Detach(registrant.application_id)))

    # One connection

    async def _converse_with(self, connection: ControlConnection[control.ControlMessage]) -> None:
        letters = Letters(
            self._module.told_max,
            control.Refused(RefusalCode.LIMIT, "the application does not listen to what it is told"),
        )
        await converse(connection, letters, self._hear(connection, letters))

    async def _hear(self, connection: ControlConnection[control.ControlMessage], letters: Letters) -> None:
        with contextlib.suppress(PenstockError):
            first = await connection.receive()
            if isinstance(first, control.Register):
                await self._serve_application(connection, letters, first)
            elif isinstance(first, control.OfferRing):
                await self._serve_publisher(connection, letters, first)
            elif first is not None:
                letters.end(control.Refused(RefusalCode.PROTOCOL, "the first message registers, or offers a ring"))

    # Applications

    async def _serve_application(
        self, connection: ControlConnection[control.ControlMessage], letters: Letters, message: control.Register
    ) -> None:
        host = connection.address.rpartition(":")[0]
        node = connection.peer.node
        try:
            registrant = self._desk.register(node, host, message, self._draw_id, time.time_ns())
        except PenstockError as error:
            self._refuse(letters, message.application, error)
            return
        self._letters[registrant.application_id] = letters
        try:
            await self._attach(registrant, letters)
            async for request in connection:
                await self._answer(registrant, request, letters)
        except RefusalError as error:
            self._refuse(letters, registrant.name, error)
        finally:
            await asyncio.shield(self._detach(registrant))

    async def _attach(self, registrant: Registrant, letters: Letters) -> None:
        event = registrant.attach()
        try:
            placed = await self._ask(lambda: self._data.attach(event))
        except PenstockError as error:
            raise _final(error) from None
        self._placed[registrant.application_id] = placed
        attached, (host, port) = placed.attached, self._data.address
        is_shared = attached.delivery in ("mask", "residual")
        letters.put(
            control.Registered(
                self._module.name,
                registrant.application_id,
                attached.delivery,
                self._module.repair,
                host,
                port,
                group=attached.address[0] if is_shared else "",
                group_port=attached.address[1] if is_shared else 0,
                bit=attached.bit,
                path=self._handover_path if placed.segment else "",
                segment=placed.segment,
            )
        )
        self.counters.add("applications_attached")
        host, port = registrant.address
        log.info("application_attached", application=registrant.name, delivery=attached.delivery, at=f"{host}:{port}")

    async def _detach(self, registrant: Registrant) -> None:
        """The application is gone, however that happened; until this has been carried out, its name is taken."""
        event = Detach(registrant.application_id)
        with contextlib.suppress(PenstockError):  # the filter has stopped: everybody is detached
            await self._ask(lambda: self._data.handle(event))
            await self._forget_models(registrant, set(registrant.models))
        self._letters.pop(registrant.application_id, None)
        self._placed.pop(registrant.application_id, None)
        self._desk.leave(registrant)
        log.info("application_detached", application=registrant.name)

    async def _answer(self, registrant: Registrant, request: control.ControlMessage, letters: Letters) -> None:
        """Do what is asked, and say that it is done; or refuse it."""
        number = getattr(request, "number", 0)
        try:
            check_number(number)
            match request:
                case control.Want():
                    await self._want(registrant, request)
                case control.Models():
                    await self._learn(registrant, request)
                case control.RenewToken():
                    await self._renew(registrant, request)
                case control.RestartRing():
                    consumer = self._placed[registrant.application_id].attached.consumer
                    await self._ask(lambda: self._data.restart_ring(consumer))
                    letters.put(control.Restarted(number))
                    return
                case _:
                    raise RefusalError(RefusalCode.PROTOCOL, f"{type(request).__name__} has no place here")
        except PenstockError as error:
            refusal = refusal_of(error, number)
            self.counters.add("requests_refused", cause=refusal.code)
            if refusal.code == RefusalCode.PROTOCOL or (isinstance(error, RefusalError) and error.is_final):
                raise _final(error) from None
            letters.put(refusal)
            return
        letters.put(control.Holds(number))

    async def _want(self, registrant: Registrant, request: control.Want) -> None:
        event, plan = self._desk.want(registrant, request)
        try:
            await asyncio.to_thread(self._data.core.prepare, event)  # others' packets do not wait for that
            await self._carry_out(event)
        finally:
            self._desk.settled(event)
        self._desk.committed(registrant, plan)

    async def _carry_out(self, event: Want) -> None:
        await self._ask(lambda: self._data.handle(event))

    async def _learn(self, registrant: Registrant, request: control.Models) -> None:
        before = set(registrant.models)
        models = self._desk.models(registrant, request)
        try:
            await self._ask(lambda: [self._data.handle(LearnModel(model)) for model in models])
        except PenstockError:
            await self._forget_models(registrant, registrant.models - before)
            raise

    async def _forget_models(self, registrant: Registrant, models: Iterable[tuple[int, int]]) -> None:
        if unnamed := self._desk.release_models(registrant, models):
            await self._ask(lambda: self._data.handle(ForgetModels(unnamed)))

    async def _renew(self, registrant: Registrant, request: control.RenewToken) -> None:
        try:
            renewal = self._desk.renew(registrant, request.token, time.time_ns())
            if renewal is not None:
                entitled, plan = renewal
                await self._carry_out(Want(registrant.application_id, plan.add, plan.remove))
                self._desk.renewed(registrant, entitled)
        except PenstockError as error:
            raise _final(error) from None  # without a right there is nothing to go on with

    def _refuse(self, letters: Letters, name: str, error: PenstockError) -> None:
        refusal = refusal_of(error)
        self.counters.add("applications_refused", cause=refusal.code)
        log.warning("application_refused", application=name, code=refusal.code, why=refusal.reason)
        letters.end(refusal)

    def _draw_id(self) -> int:
        return self._randomness.below(2**ID_BITS)

    async def _ask(self, question: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._data.ask(question))

    # Publishers of this host

    async def _serve_publisher(
        self, connection: ControlConnection[control.ControlMessage], letters: Letters, offer: control.OfferRing
    ) -> None:
        self._publisher_count += 1
        number = self._publisher_count
        self._publishers[number] = letters
        source = (offer.host, offer.port)
        try:
            check_number(offer.number)
            self._desk.check_publisher(connection.address.rpartition(":")[0], offer)
            if len(self._publishers) > self._module.publishers_max:
                raise LimitError(f"{self._module.publishers_max} publishers' rings are read already")
            segment = await await_segment(offer.path, offer.segment, secret=self._secret)
            try:
                await self._ask(lambda: self._data.read_publisher(number, segment, source))
            except BaseException:
                segment.close()
                raise
            letters.put(control.Holds(offer.number))
            log.info("ring_offered", publisher_id=offer.publisher_id, source=source)
            while await connection.receive() is not None:
                raise RefusalError(RefusalCode.PROTOCOL, "after its offer a publisher has nothing more to say")
        except PenstockError as error:
            if not connection.is_over:
                letters.end(refusal_of(error))
        finally:
            del self._publishers[number]
            with contextlib.suppress(PenstockError):
                await asyncio.shield(self._ask(lambda: self._data.forget_publisher(number)))


def _final(error: PenstockError) -> RefusalError:
    """The connection ends with it."""
    refusal = refusal_of(error)
    return RefusalError(RefusalCode(refusal.code), error.what, hint=error.hint, is_final=True)


def _message_of(tell: Tell) -> control.FilterMessage:
    match tell.what:
        case StreamPosition(stream, epoch, next_sequence, (host, port), is_replay):
            return control.Position(
                stream.publisher_id, stream.group, epoch, next_sequence, host, port, is_replay=is_replay
            )
        case StreamOver(stream, epoch, next_sequence, cause):
            return control.Ended(stream.publisher_id, stream.group, epoch, next_sequence, cause)
        case Collision(stream, epoch, owner, intruder):
            return control.Collided(stream.publisher_id, stream.group, epoch, _shown(owner), _shown(intruder))


def _shown(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"
