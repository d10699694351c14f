"""The control connections of a filter module: applications subscribe, publishers of the host offer their rings."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import LimitError, PenstockError
from penstock.base.log import logger
from penstock.filter.core import control
from penstock.filter.core.access import REFUSALS, ApplicationAccess, Registrant
from penstock.filter.core.control import CONNECTION, PROTOCOL, RefusalCode
from penstock.filter.core.events import (
    Collision,
    Detach,
    ForgetModels,
    LearnModel,
    StreamOver,
    StreamPosition,
    Tell,
    Want,
)
from penstock.filter.live.data_path import DataPath, Placed
from penstock.filter.module_config import FilterModuleConfig
from penstock.net.live.control_driver import ControlConnection
from penstock.net.live.handover import await_segment
from penstock.net.live.outbox import Outbox
from penstock.net.secret import Secret
from penstock.runtime.control_service import Connection, ControlService, ServiceTexts
from penstock.runtime.service_settings import ServiceSettings
from penstock.security.core.refusal import RefusalError, check_number

ID_BITS = 64
TEXTS = ServiceTexts("application", first="the first message registers, or offers a ring", stopping="the filter stops")

log = logger("filter.control")


class ApplicationServer(ControlService[control.ControlMessage, control.Refused, Registrant]):
    """Serves applications and publishers until close(); beyond the loopback address it needs `tls` and `secret`."""

    def __init__(
        self,
        config: FilterModuleConfig,
        access: ApplicationAccess,
        data: DataPath,
        handover_path: str,
        *,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        counters: Counters,
    ) -> None:
        self._module = config
        self._applications = access
        self._data = data
        self._handover_path = handover_path
        self._publishers: dict[int, Outbox[Any]] = {}
        self._publisher_count = 0
        self._secret = secret
        self._randomness = SystemRandomness()
        self._placed: dict[int, Placed] = {}
        super().__init__(
            PROTOCOL,
            access,
            REFUSALS,
            data,
            TEXTS,
            ServiceSettings(config.name, config.control, secret, tls, CONNECTION, counters, log),
            outbox_max=config.told_max,
        )

    # Calls from other parts, in the thread of the loop

    def notify(self, tell: Tell) -> None:
        """Tell an application about a change of a stream."""
        self.tell(tell.application, _message_of(tell))

    def ring_lost(self, number: int, error: PenstockError) -> None:
        """End the connection of a publisher whose ring cannot be read any more."""
        if (outbox := self._publishers.get(number)) is not None:
            outbox.end(REFUSALS.of(error))

    def open_outboxes(self) -> list[Outbox[Any]]:
        return [*super().open_outboxes(), *self._publishers.values()]

    def placed(self) -> list[tuple[Registrant, Placed]]:
        """The registered applications and their places."""
        placed = list(self._placed.items())  # copied at once: any thread may call
        found = ((self.access.parties.get(number), each) for number, each in placed)
        return [(registrant, each) for registrant, each in found if registrant is not None]

    # Applications

    async def begin(
        self, connection: Connection[control.ControlMessage], outbox: Outbox[Any], first: control.ControlMessage
    ) -> bool:
        match first:
            case control.Register():
                await self._serve_application(connection, outbox, first)
            case control.OfferRing():
                await self._serve_publisher(connection, outbox, first)
            case _:
                return False
        return True

    async def _serve_application(
        self, connection: Connection[control.ControlMessage], outbox: Outbox[Any], message: control.Register
    ) -> None:
        assert isinstance(connection, ControlConnection)
        host = connection.address.rpartition(":")[0]
        try:
            registrant = self._applications.register(connection.peer.node, host, message, self._draw_id, time.time_ns())
        except PenstockError as error:
            self.refuse(outbox, message.application, error)
        else:
            await self.serve(connection, outbox, registrant)

    async def attach(
        self, party: Registrant, connection: Connection[control.ControlMessage], outbox: Outbox[Any]
    ) -> None:
        event = party.attach()
        placed = await self.ask(lambda: self._data.attach(event))
        self._placed[party.number] = placed
        attached, (host, port) = placed.attached, self._data.address
        is_shared = attached.delivery in ("mask", "residual")
        outbox.put(
            control.Registered(
                self._module.name,
                party.number,
                attached.delivery,
                self._module.repair,
                host,
                port,
                group=attached.address[0] if is_shared else "",
                group_port=attached.address[1] if is_shared else 0,
                bit=attached.bit,
                path=self._handover_path if placed.segment else "",
                segment=placed.segment,
                key=attached.key.key if attached.key is not None else b"",
                group_key=attached.group_key.key if attached.group_key is not None else b"",
            )
        )
        host, port = party.address
        log.info("application_attached", application=party.name, delivery=attached.delivery, at=f"{host}:{port}")

    async def detach(self, party: Registrant) -> None:
        event = Detach(party.number)
        try:
            await self.ask(lambda: self._data.handle(event))
            await self._forget_models(party, set(party.models))
        finally:
            self._placed.pop(party.number, None)

    def cut_off(self, party: Registrant) -> None:
        self._data.ask(lambda: self._data.handle(Detach(party.number)))

    async def answer(self, party: Registrant, request: control.ControlMessage) -> Sequence[control.ControlMessage]:
        match request:
            case control.Want(number):
                await self._want(party, request)
            case control.Models(number):
                await self._learn(party, request)
            case control.RenewToken(number):
                await self._renew(party, request)
            case control.RestartRing(number):
                consumer = self._placed[party.number].attached.consumer
                await self.ask(lambda: self._data.restart_ring(consumer))
                return [control.Restarted(number)]
            case _:
                raise RefusalError(RefusalCode.PROTOCOL, f"{type(request).__name__} is not a request of an application")
        return [control.Holds(number)]

    async def _want(self, registrant: Registrant, request: control.Want) -> None:
        event, plan = self._applications.want(registrant, request)
        try:
            await asyncio.to_thread(self._data.core.prepare, event)  # packets are forwarded meanwhile
            await self._carry_out(event)
        finally:
            self._applications.settled(event)
        self._applications.committed(registrant, plan)

    async def _carry_out(self, event: Want) -> None:
        await self.ask(lambda: self._data.handle(event))

    async def _learn(self, registrant: Registrant, request: control.Models) -> None:
        before = set(registrant.models)
        models = self._applications.models(registrant, request)
        try:
            await self.ask(lambda: [self._data.handle(LearnModel(model)) for model in models])
        except PenstockError:
            await self._forget_models(registrant, registrant.models - before)
            raise

    async def _forget_models(self, registrant: Registrant, models: Iterable[tuple[int, int]]) -> None:
        if unnamed := self._applications.release_models(registrant, models):
            await self.ask(lambda: self._data.handle(ForgetModels(unnamed)))

    async def _renew(self, registrant: Registrant, request: control.RenewToken) -> None:
        try:
            renewal = self._applications.renew(registrant, request.token, time.time_ns())
            if renewal is not None:
                entitled, plan = renewal
                await self._carry_out(Want(registrant.number, plan.add, plan.remove))
                self._applications.renewed(registrant, entitled)
        except PenstockError as error:
            raise REFUSALS.final(error) from None  # the connection cannot continue without rights

    def _draw_id(self) -> int:
        return self._randomness.below(2**ID_BITS)

    # Publishers of this host

    async def _serve_publisher(
        self, connection: Connection[control.ControlMessage], outbox: Outbox[Any], offer: control.OfferRing
    ) -> None:
        self._publisher_count += 1
        number = self._publisher_count
        self._publishers[number] = outbox
        source = (offer.host, offer.port)
        try:
            check_number(offer.number)
            self._applications.check_publisher(connection.address.rpartition(":")[0], offer)
            if len(self._publishers) > self._module.publishers_max:
                raise LimitError(f"{self._module.publishers_max} rings of publishers are the limit")
            segment = await await_segment(offer.path, offer.segment, secret=self._secret)
            try:
                await self.ask(lambda: self._data.read_publisher(number, segment, source))
            except BaseException:
                segment.close()
                raise
            outbox.put(control.Holds(offer.number))
            log.info("ring_offered", publisher_id=offer.publisher_id, source=source)
            while await connection.receive() is not None:
                raise RefusalError(RefusalCode.PROTOCOL, "a publisher sends no further message after its offer")
        except PenstockError as error:
            if not connection.is_over:
                outbox.end(REFUSALS.of(error))
        finally:
            del self._publishers[number]
            with contextlib.suppress(PenstockError):
                await asyncio.shield(self.ask(lambda: self._data.forget_publisher(number)))


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
