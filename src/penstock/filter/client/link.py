"""An application's control connection to its filter module, in an asyncio loop (net/live/control_client.py).

Messages of the filter module are queued in `inbox`, in order, for the thread that receives packets.
"""

import itertools
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from penstock.base.errors import ConnectionLostError, LimitError, PenstockError, RefusedError, UnreachableError
from penstock.base.log import logger
from penstock.base.segment import Segment
from penstock.filter.client.wanted import WantedInterests
from penstock.filter.core.control import (
    CONNECTION,
    PROTOCOL,
    Collided,
    ControlMessage,
    Ended,
    Holds,
    Interests,
    Models,
    Position,
    RefusalCode,
    Refused,
    Register,
    Registered,
    RenewToken,
    Restarted,
    RestartRing,
    Want,
)
from penstock.net.live.control_client import ControlClient
from penstock.net.live.control_driver import ControlConnection
from penstock.net.live.handover import await_segment
from penstock.net.place import is_loopback
from penstock.net.secret import Secret
from penstock.net.udp import Address, Channel, group_socket, host_socket

log = logger("filter.link")

INBOX_MAX = 65_536

FINAL_CODES = frozenset(
    {
        RefusalCode.REVOKED, RefusalCode.ENTITLEMENT, RefusalCode.CONTROLLER, RefusalCode.HOST, RefusalCode.DELIVERY,
        RefusalCode.INTEREST, RefusalCode.CONDITION, RefusalCode.MODEL, RefusalCode.CHANNEL, RefusalCode.PROTOCOL,
    }
)  # fmt: skip
"""Refusals that would be repeated on another attempt."""


class Attachment(msgspec.Struct, frozen=True):
    """A registration with its sources of packets: the application's own socket, and a group or ring."""

    registered: Registered
    group: socket.socket | None = None
    segment: Segment | None = None
    request_socket: socket.socket | None = None
    """A socket for requests to publishers, if the application's own socket is bound to the loopback interface."""

    def close(self) -> None:
        for each in (self.group, self.segment, self.request_socket):
            if each is not None:
                each.close()


class Detached(msgspec.Struct, frozen=True):
    """The connection was lost; no packets arrive until the next one."""


Told: TypeAlias = Attachment | Detached | Position | Ended | Collided | Restarted


class Identity(msgspec.Struct, frozen=True):
    """The application's identity at registration."""

    register: Register
    interface: str
    """The address of the interface towards the filter module."""

    secret: Secret | None = None
    tls: ssl.SSLContext | None = None


class FilterLink(ControlClient[ControlMessage]):
    """`arrived` is notified of messages in the inbox; `on_inbox` is called too, in the thread of the loop."""

    def __init__(
        self,
        address: Address,
        identity: Identity,
        wanted: WantedInterests,
        documents: Callable[[], Sequence[str]],
        on_inbox: Callable[[], None],
        on_refused: Callable[[RefusedError], None],
    ) -> None:
        super().__init__(
            PROTOCOL,
            address,
            node=identity.register.application,
            server="filter",
            secret=identity.secret,
            tls=identity.tls,
            config=CONNECTION,
            log=log,
        )
        self.token = identity.register.token
        self.application_id = identity.register.application_id
        """The same on every connection, even if the filter module chose it."""
        self.inbox: deque[Told] = deque()
        self.arrived = threading.Condition()
        self.last_refusal: RefusedError | None = None
        self.lost_at = time.monotonic()
        """Time when the connection was lost; before the first connection, when the link was created."""
        self._identity = identity
        self._wanted = wanted
        self._documents = documents
        self._on_inbox = on_inbox
        self._on_refused = on_refused
        self._was_attached = False

    async def change(self, add: Sequence[Interests] = (), remove: Sequence[Interests] = ()) -> bool:
        """Return True if the filter module has made the change. Otherwise it becomes part of the next resume()."""
        if self.connection is None:
            return False
        try:
            for part in itertools.zip_longest(add, remove):  # additions come before removals
                more, less = ([] if each is None else [each] for each in part)
                await self.ask(lambda number, more=more, less=less: Want(number, more, less), Holds)  # type: ignore[misc]
        except (ConnectionLostError, UnreachableError):
            return False
        return True

    async def learn(self, documents: Sequence[str]) -> None:
        if self.connection is not None and documents:
            await self.ask(lambda number: Models(number, list(documents)), Holds)

    async def renew(self, token: str) -> None:
        self.token = token
        if self.connection is not None:
            await self.ask(lambda number: RenewToken(number, token), Holds)

    async def restart_ring(self) -> None:
        if self.connection is not None:
            await self.ask(RestartRing, Restarted)

    async def log_in(self, connection: ControlConnection[ControlMessage]) -> None:
        register = msgspec.structs.replace(
            self._identity.register, token=self.token, application_id=self.application_id
        )
        registered = await self.first_answer(connection, register, Registered)
        self.application_id = registered.application_id
        self._put(await self._opened(registered))

    async def _opened(self, registered: Registered) -> Attachment:
        """Open the sources of packets before packets arrive."""
        if registered.delivery == "ring":
            segment = await await_segment(registered.path, registered.segment, secret=self._identity.secret)
            attachment = Attachment(registered, segment=segment)
        elif registered.group:
            channel = Channel(
                group=registered.group, port=registered.group_port, interface=self._network_interface(registered)
            )
            attachment = Attachment(registered, group=group_socket(channel))
        else:
            attachment = Attachment(registered)
        return self._with_request_socket(attachment)

    def _with_request_socket(self, attachment: Attachment) -> Attachment:
        interface = self._network_interface(attachment.registered)
        if attachment.registered.repair == "filter" or interface == self._identity.interface:
            return attachment
        try:
            return msgspec.structs.replace(attachment, request_socket=host_socket(interface))
        except PenstockError:
            attachment.close()
            raise

    def _network_interface(self, registered: Registered) -> str:
        """The interface for packets of the filter module and of publishers. If the filter module has a local
        address, its interface is used."""
        return registered.host if is_loopback(self._identity.interface) else self._identity.interface

    async def resume(self) -> None:
        await self.learn(self._documents())
        for each in self._wanted.parts():
            await self.ask(lambda number, each=each: Want(number, add=[each]), Holds)  # type: ignore[misc]
        self._was_attached = True

    def answer(self, message: ControlMessage) -> bool:
        if not isinstance(message, Holds | Restarted | Refused):
            return False
        if isinstance(message, Restarted):
            self._put_bounded(message)
        self.give_answer(message.number, message)
        return True

    async def take(self, message: ControlMessage) -> None:
        if isinstance(message, Position | Ended | Collided):
            self._put_bounded(message)

    def is_final(self, error: RefusedError) -> bool:
        return error.peer_code in FINAL_CODES

    def note_refusal(self, error: RefusedError) -> None:
        super().note_refusal(error)
        self.last_refusal = error
        self._on_refused(error)

    def lost(self, error: PenstockError) -> None:
        if self._was_attached:
            self._was_attached = False
            self.lost_at = time.monotonic()
        self._put(Detached())

    def _put_bounded(self, told: Told) -> None:
        if len(self.inbox) >= INBOX_MAX:
            raise LimitError(f"{INBOX_MAX} messages of the filter wait to be received")
        self._put(told)

    def _put(self, told: Told) -> None:
        with self.arrived:
            self.inbox.append(told)
            self.arrived.notify_all()
        self._on_inbox()
