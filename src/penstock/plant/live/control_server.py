"""The control connections of a node: requests of consumers, and events of sessions."""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from penstock.base.counters import Counters
from penstock.base.errors import ModelError, PenstockError
from penstock.base.log import logger
from penstock.engine import control
from penstock.engine.control import CONNECTION, PROTOCOL, RefusalCode
from penstock.engine.core import events
from penstock.model import MessageModel
from penstock.net.live.outbox import Outbox
from penstock.net.live.stream_server import Through
from penstock.net.secret import Secret
from penstock.plant.config import NodeConfig
from penstock.plant.core.access import REFUSALS, Consumer, ConsumerAccess
from penstock.plant.core.authority import Authority
from penstock.plant.core.snapshot import snapshot
from penstock.plant.live.data_path import DataPath
from penstock.plant.live.downstream import DownstreamNodes
from penstock.plant.live.session_transport import session_place
from penstock.runtime.control_service import Connection, ControlService, ServiceTexts
from penstock.runtime.service_settings import ServiceSettings
from penstock.security.core.access_control import Rights, check_same_subject
from penstock.security.core.refusal import RefusalError

TEXTS = ServiceTexts("consumer", first="the first message is a login", stopping="the node stops")

GROUP_KEY_STEP_S = 1.0
"""Time that members need to learn a new group key; then, time in which packets under the old key arrive."""

log = logger("plant.control")


class Sources(Protocol):
    """The node's access to models and records that other nodes have."""

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]: ...

    async def model(self, model_id: int, version: int) -> str: ...


class NodeServer(ControlService[control.ControlMessage, control.Refused, Consumer]):
    """Serves consumers until close(). Beyond the loopback address it needs `tls` and `secret`."""

    def __init__(
        self,
        config: NodeConfig,
        access: ConsumerAccess,
        data: DataPath,
        authority: Authority,
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
        self._consumers = access
        self._data = data
        self._authority = authority
        self._sources = sources
        self._handover_path = handover_path
        self._epoch = epoch
        self._outgoing: dict[int, asyncio.Queue[bytes]] = {}  # by session
        self._sending: dict[int, asyncio.Task[None]] = {}  # by session
        self._downstream = DownstreamNodes(config.datagrams, access, data, counters)
        self._replacing: asyncio.Task[None] | None = None  # replaces the group's key
        super().__init__(
            PROTOCOL,
            access,
            REFUSALS,
            data,
            TEXTS,
            ServiceSettings(
                config.name,
                config.control,
                secret,
                tls,
                msgspec.structs.replace(CONNECTION, connections_max=2 * config.engine.consumers_max),
                counters,
                log,
                through,
            ),
            outbox_max=config.told_max,
        )

    # Calls from other parts, in the thread of the loop

    def events_ready(self, consumer: int, data: bytes) -> None:
        if (outgoing := self._outgoing.get(consumer)) is not None:
            outgoing.put_nowait(data)

    def revoke(self, subscription_id: str, reason: str) -> None:
        """Revoke a subscription's rights, of consumers of this node and of downstream nodes."""
        super().revoke(subscription_id, reason)
        for number in self.outboxes:
            if (party := self.access.parties.get(number)) is not None and party.is_node:
                self.tell(number, control.Withdrawn(subscription_id, reason[:256]))

    def end_consumer(self, consumer: int, error: PenstockError) -> None:
        """End the connection of the consumer of this number."""
        if (party := self.access.parties.get(consumer)) is not None:
            self.end(party, error)

    async def close(self) -> None:
        if self._replacing is not None:
            self._replacing.cancel()
            await asyncio.gather(self._replacing, return_exceptions=True)
        await super().close()
        await asyncio.to_thread(self._downstream.close)

    # One connection

    async def begin(
        self, connection: Connection[control.ControlMessage], outbox: Outbox[Any], first: control.ControlMessage
    ) -> bool:
        if not isinstance(first, control.Login):
            return False
        try:
            party = self._consumers.enter(connection.address.rpartition(":")[0], first)
        except PenstockError as error:
            self.refuse(outbox, first.name, error)
        else:
            await self.serve(connection, outbox, party)
        return True

    async def attach(
        self, party: Consumer, connection: Connection[control.ControlMessage], outbox: Outbox[Any]
    ) -> None:
        party.rights = await self._authority.admit(party.name, party.token, time.time_ns())
        sender = await self.ask(lambda: self._downstream.open(party)) if party.transport == "datagram" else None
        if party.transport == "session":
            self._outgoing[party.number] = asyncio.Queue()
        placed = await self.ask(lambda: self._data.attach(party, sender))
        welcome = control.Welcome(
            self._node.name,
            self._epoch,
            party.number,
            list(party.classes),
            rate_max=self._consumers.rate_max,
            grants=party.rights.patterns()[: control.GRANTS_MAX],
            path=self._handover_path if placed.ring else "",
            ring=placed.ring,
            notices=placed.notices,
        )
        outbox.put(welcome if sender is None else sender.introduce(welcome))
        if sender is not None and sender.group is not None and self._replacing is not None:
            outbox.put((await self.ask(self._downstream.group_keys))[1])
        log.info("consumer_attached", consumer=party.name, transport=party.transport, host=party.host)
        if party.transport == "session" and (place := session_place(connection)) is not None:
            await self.ask(lambda: self._data.carry(party.number, *place))
        elif party.transport == "session":
            sending = asyncio.get_running_loop().create_task(self._send_events(connection, party.number))
            self._sending[party.number] = sending

    async def detach(self, party: Consumer) -> None:
        if (sending := self._sending.pop(party.number, None)) is not None:
            sending.cancel()
        try:
            await self.ask(lambda: self._data.detach(party))
            if (sender := await self.ask(lambda: self._downstream.leave(party))) is not None:
                await asyncio.to_thread(sender.close)
            self._replace_group_key()
        finally:
            self._outgoing.pop(party.number, None)

    def cut_off(self, party: Consumer) -> None:
        self._data.ask(lambda: self._data.detach(party))

    async def _send_events(self, connection: Connection[control.ControlMessage], consumer: int) -> None:
        outgoing = self._outgoing[consumer]
        with contextlib.suppress(PenstockError):  # the connection has ended, and its reader logs the reason
            while True:
                await connection.send(control.Events(await outgoing.get()))
                await self.ask(lambda: self._data.sent(consumer))

    # Replacing the group's key after a member has left

    def _replace_group_key(self) -> None:
        if self._downstream.has_lost_members and self._replacing is None:
            self._replacing = asyncio.get_running_loop().create_task(self._replace_group_keys())

    async def _replace_group_keys(self) -> None:
        """Replace the key until no member has left since the last replacement."""
        with contextlib.suppress(PenstockError):  # the data path has ended
            while self._downstream.has_lost_members:
                await self.ask(self._downstream.make_next_key)
                await self._tell_group_keys()
                await asyncio.sleep(GROUP_KEY_STEP_S)
                await self.ask(self._downstream.activate_next_key)
                await asyncio.sleep(GROUP_KEY_STEP_S)
                await self.ask(self._downstream.retire_key)
                await self._tell_group_keys()
        self._replacing = None

    async def _tell_group_keys(self) -> None:
        members, keys = await self.ask(self._downstream.group_keys)
        for number in members:
            self.tell(number, keys)

    # Requests

    async def take(self, party: Consumer, message: control.ControlMessage, outbox: Outbox[Any]) -> None:
        if isinstance(message, control.Missed):
            missed = message
            await self.ask(lambda: self._downstream.missed(party, missed))
            self._replace_group_key()
        else:
            await super().take(party, message, outbox)

    async def answer(self, party: Consumer, request: control.ControlMessage) -> Sequence[control.ControlMessage]:
        match request:
            case control.Subscribe(number):
                return [control.Held(number, await self._subscribe(party, request))]
            case control.Unsubscribe(number, subscription):
                self._consumers.subscription(party, subscription)
                await self.ask(lambda: self._release(party, subscription))
                del party.subscriptions[subscription]
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
                raise RefusalError(RefusalCode.PROTOCOL, f"{type(request).__name__} is not a request of a consumer")

    async def _subscribe(self, party: Consumer, request: control.Subscribe) -> float:
        per_second = self._consumers.check(party, request)
        topics = (await self._judged(party, request.topics)).narrow(request.topics, control.TOPICS_MAX)
        await self.ask(lambda: self._hold(party, request, topics, per_second))
        party.subscriptions[request.number] = request
        return per_second

    def _hold(self, party: Consumer, request: control.Subscribe, topics: Sequence[str], per_second: float) -> None:
        self._data.handle(self._event(party, request, topics, per_second))
        self._downstream.subscribed(party, request, topics)

    def _release(self, party: Consumer, subscription: int) -> None:
        self._data.handle(events.Unsubscribe(party.number, subscription))
        self._downstream.unsubscribed(party, subscription)

    def _event(
        self, party: Consumer, request: control.Subscribe, topics: Sequence[str], per_second: float
    ) -> events.Subscribe:
        after = request.after if request.epoch == self._epoch else 0
        return events.Subscribe(party.number, request.number, topics, request.cls, per_second, after)

    async def _modify(self, party: Consumer, subscription: int, per_second: float) -> float:
        request = self._consumers.subscription(party, subscription)
        granted = self._consumers.granted_rate(request.cls, per_second)
        await self._handle(events.Modify(party.number, subscription, granted))
        party.subscriptions[subscription] = msgspec.structs.replace(request, per_second=per_second)
        return granted

    async def _snapshot(self, party: Consumer, number: int, topics: Sequence[str]) -> list[control.NodeMessage]:
        blocks = await self._sources.snapshot((await self._judged(party, topics)).narrow(topics, control.TOPICS_MAX))
        return [control.Records(number, block, is_last=block is blocks[-1]) for block in blocks]

    async def _overrun(self, party: Consumer, request: control.Overrun) -> None:
        if party.transport != "local":
            raise RefusalError(RefusalCode.SEGMENT, "the consumer has no ring")
        await self._handle(events.Overrun(party.number, request.last_number, request.ring))

    async def _judged(self, party: Consumer, topics: Sequence[str]) -> Rights:
        return await self._authority.judge(party.name, party.token, party.rights, topics)

    async def _renew(self, party: Consumer, token: str) -> None:
        before = party.rights
        try:
            after = await self._authority.admit(party.name, token, time.time_ns())
            check_same_subject(before, after)
            self._downstream.check_rights(party, after.text)
            party.rights, party.token = after, token
            if after.text != before.text:
                await self._regrant(party, after)
        except PenstockError as error:
            raise REFUSALS.final(error) from None  # the connection cannot continue without rights

    async def _regrant(self, party: Consumer, rights: Rights) -> None:
        """The rights have changed: subscribe again to the granted part of each subscription, or end it."""
        asked, party.subscriptions = party.subscriptions, {}
        for number in asked:
            await self._handle(events.Unsubscribe(party.number, number, is_told=False))
        await self.ask(lambda: self._data.regrant(party))
        for number, request in asked.items():
            with contextlib.suppress(PenstockError):
                topics = rights.narrow(request.topics, control.TOPICS_MAX)
                per_second = self._consumers.granted_rate(request.cls, request.per_second)
                await self._handle(self._event(party, request, topics, per_second))
                party.subscriptions[number] = request

    async def _vouch(self, request: control.Vouch) -> control.Vouched:
        """Check a token for a consumer of a downstream node."""
        rights = await self._authority.admit(request.name, request.token, time.time_ns())
        if request.topics:
            (await self._authority.judge(request.name, request.token, rights, request.topics)).narrow(
                request.topics, control.TOPICS_MAX
            )
        return control.Vouched(
            request.number,
            rights.subject,
            rights.subscription_id,
            rights.expires_ns,
            rights.patterns()[: control.GRANTS_MAX],
        )

    async def _handle(self, event: events.EngineEvent) -> None:
        await self.ask(lambda: self._data.handle(event))


class OwnSources:
    """A ticker plant has all models and records itself."""

    def __init__(self, data: DataPath, models: dict[int, MessageModel], items_max: int) -> None:
        self._data = data
        self._models = models
        self._items_max = items_max

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]:
        return await asyncio.wrap_future(self._data.ask(lambda: snapshot(self._data.engine, topics, self._items_max)))

    async def model(self, model_id: int, version: int) -> str:
        model = self._models.get(model_id)
        if model is None or not model.text:
            raise ModelError(f"model id {model_id} is unknown")
        return model.text
