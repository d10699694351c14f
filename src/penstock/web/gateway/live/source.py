"""The interface of the sources and destinations of a browser's messages."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.base.errors import PenstockError
from penstock.capture.core.message_reader import Readable
from penstock.model import Message, MessageModel
from penstock.web.gateway.core.replies import Info, Receipt, State
from penstock.web.gateway.core.requests import Subscribe


class Arrival(NamedTuple):
    time_ns: int
    """Time of publishing or, if unknown, of arrival, by the wall clock."""

    message: Readable


class Outlet(Protocol):
    """Receives notifications of a source, in the thread of the loop."""

    def opened(self, number: int, is_live: bool) -> None:
        """A subscription was opened. Called once, before all other calls for it. `is_live`: it has no retained
        messages to deliver."""

    def arrived(self, number: int, stream: str, arrivals: Sequence[Arrival]) -> None:
        """Messages of a subscription, in order."""

    def is_live(self, number: int) -> None:
        """A subscription has delivered all retained messages."""

    def received(self, receipt: Receipt) -> None: ...

    def ended(self, number: int, error: PenstockError) -> None:
        """A subscription has ended."""

    def changed(self, state: State) -> None: ...

    def heard(self, info: Info) -> None: ...


class GatewaySource(Protocol):
    """The source of one WebSocket, with its user's grants. Methods raise PenstockError for refused requests."""

    agent: str
    tree: str
    path: list[str]

    async def subscribe(self, request: Subscribe) -> None:
        """Subscribe. The outlet is notified when the subscription is open."""

    async def unsubscribe(self, number: int) -> None: ...

    async def publish(self, topic: str, record: Message) -> None:
        """Publish a message; returns when it is stored."""

    async def models(self) -> Sequence[MessageModel]: ...

    def pause(self) -> None:
        """Deliver nothing more for now: the browser does not keep up."""

    def resume(self) -> None: ...

    async def close(self) -> None: ...
