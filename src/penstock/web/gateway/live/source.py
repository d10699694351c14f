"""Where a browser's messages come from, and where they go."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.base.errors import PenstockError
from penstock.capture.core.message_reader import Readable
from penstock.model import Message, MessageModel
from penstock.web.gateway.core.replies import Info, Receipt, State
from penstock.web.gateway.core.requests import Subscribe


class Arrival(NamedTuple):
    time_ns: int
    """When it was published, or else when it came, by the wall clock."""

    message: Readable


class Outlet(Protocol):
    """Who is told; in the thread of the loop."""

    def opened(self, number: int, is_live: bool) -> None:
        """A subscription is there; said once, before anything else of it. `is_live`: from the beginning."""

    def arrived(self, number: int, stream: str, arrivals: Sequence[Arrival]) -> None:
        """Messages of a subscription, in their order."""

    def is_live(self, number: int) -> None:
        """A subscription has everything from before."""

    def received(self, receipt: Receipt) -> None: ...

    def ended(self, number: int, error: PenstockError) -> None:
        """A subscription is over."""

    def changed(self, state: State) -> None: ...

    def heard(self, info: Info) -> None: ...


class GatewaySource(Protocol):
    """Of one WebSocket, with the grants of its user. Methods raise PenstockError for what is refused."""

    agent: str
    tree: str
    path: list[str]

    async def subscribe(self, request: Subscribe) -> None:
        """The outlet is told when it is open."""

    async def unsubscribe(self, number: int) -> None: ...

    async def publish(self, topic: str, record: Message) -> None:
        """Returns when it is kept."""

    async def models(self) -> Sequence[MessageModel]: ...

    def pause(self) -> None:
        """Bring nothing more: the browser does not keep up."""

    def resume(self) -> None: ...

    async def close(self) -> None: ...
