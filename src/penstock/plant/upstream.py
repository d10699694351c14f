"""What a multiplexer or an edge cache has of the node above: its link, and what comes by it.

The engine says what its consumers want, all together; that is asked for above. The events that come are this node's
updates: numbers of items are translated, versions are kept. When the link is lost and made again, consumers get a receipt
for what they may have missed, and refreshes.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from penstock.base.counters import Cause, Counters
from penstock.base.errors import PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.engine._event import EventKind, read_events
from penstock.engine.control import ClassWish, Events, Login, Vouched, Welcome, Withdrawn
from penstock.engine.events import Image, Lost, UpstreamLive
from penstock.engine.link import NodeLink, Told
from penstock.net.secret import Secret
from penstock.net.udp import Address
from penstock.plant.datapath import DataPath, FromAbove, Updated

ITEMS_MAX = 16_000_000
"""Items that the node above may define on one connection."""

log = logger("plant.upstream")


class Defined(NamedTuple):
    """An item of the node above."""

    topic: bytes
    model_id: int
    model_version: int


class Incoming:
    """Reads what the node above sends on one connection. It does no I/O; what is not well formed is an error, which
    ends the connection."""

    def __init__(self, topics_of: Callable[[int], Sequence[str]]) -> None:
        self.last_number = 0
        self._topics_of = topics_of
        self._items: dict[int, Defined] = {}
        self._is_repairing = False

    def begin(self, *, is_again: bool) -> None:
        """A new connection; the consumers may have missed something if there was one before."""
        self._items.clear()
        self.last_number = 0
        self._is_repairing = is_again

    def read(self, data: bytes) -> Iterator[FromAbove]:
        for event in read_events(data):
            match event.kind:
                case EventKind.DEFINE:
                    if len(self._items) >= ITEMS_MAX:
                        raise RemoteProtocolError(f"the node above defines more than {ITEMS_MAX} items")
                    self._items[event.item] = Defined(event.topic, event.model_id, event.model_version)
                case EventKind.UPDATE:
                    self.last_number = event.number
                    item = self._item(event.item)
                    yield Updated(*item, event.body, event.started_ns, event.version)
                case EventKind.REFRESH:
                    item = self._item(event.item)
                    yield Image(*item, event.version, event.body, event.started_ns, self._is_repairing)
                case EventKind.RECEIPT:
                    self._is_repairing = True
                    yield Lost()
                case EventKind.LIVE:
                    yield UpstreamLive(self._topics_of(event.subscription))
                case EventKind.REMOVE:
                    self._items.pop(event.item, None)

    def _item(self, number: int) -> Defined:
        try:
            return self._items[number]
        except KeyError:
            raise RemoteProtocolError(f"the node above sends item {number} before it defines it") from None


class Upstream:
    """The link to the node above, from start() to close(); in the loop's thread, but for wanted() and unwanted()."""

    def __init__(
        self,
        name: str,
        address: Address,
        data: DataPath,
        *,
        cls: ClassWish,
        per_second: float,
        token: str,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        counters: Counters,
        on_withdrawn: Callable[[str, str], None],
    ) -> None:
        self._data = data
        self._cls = cls
        self._per_second = per_second
        self._counters = counters
        self._on_withdrawn = on_withdrawn
        self._loop = asyncio.get_running_loop()
        self._incoming = Incoming(self._topics_of)
        self._numbers: dict[str, int] = {}  # of subscriptions above, by topic
        self._topics: dict[int, str] = {}
        self._changes: asyncio.Queue[tuple[bool, str]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._was_welcomed = False
        login = Login(name, "session", token, is_node=True)
        self.link = NodeLink(address, login, self, secret=secret, tls=tls)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self.link.run()), asyncio.create_task(self._follow())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # What the engine says, in any thread

    def wanted(self, topics: Sequence[str]) -> None:
        self._change(True, topics)

    def unwanted(self, topics: Sequence[str]) -> None:
        self._change(False, topics)

    def _change(self, is_wanted: bool, topics: Sequence[str]) -> None:
        def put() -> None:
            for topic in topics:
                self._changes.put_nowait((is_wanted, topic))

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(put)

    async def _follow(self) -> None:
        """Ask for what is wanted, and release what is not, in the order in which that was said."""
        while True:
            is_wanted, topic = await self._changes.get()
            try:
                if is_wanted:
                    await self._want(topic)
                elif (number := self._numbers.pop(topic, None)) is not None:
                    self._topics.pop(number, None)
                    await self.link.unsubscribe(number)
            except PenstockError as error:
                log.warning("upstream_refused", topic=topic, code=error.code, error=str(error))
                self._counters.add("requests_refused", cause=Cause.UPSTREAM)

    async def _want(self, topic: str) -> None:
        number = self._numbers[topic] = self.link.reserve()
        self._topics[number] = topic  # its LIVE event may come before the answer
        try:
            await self.link.subscribe([topic], self._cls, self._per_second, number=number)
        except BaseException:
            self._numbers.pop(topic, None)
            self._topics.pop(number, None)
            raise

    def _topics_of(self, number: int) -> Sequence[str]:
        topic = self._topics.get(number)
        return () if topic is None else (topic,)

    # What consumers below ask of the node above

    async def vouch(self, name: str, token: str, topics: Sequence[str] = ()) -> Vouched:
        return await self.link.vouch(name, token, topics)

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]:
        return await self.link.snapshot(topics)

    async def model(self, model_id: int, version: int) -> str:
        return await self.link.model(model_id, version)

    # What the link says

    async def welcomed(self, welcome: Welcome) -> None:
        self._incoming.begin(is_again=self._was_welcomed)
        if self._was_welcomed:
            self._data.lose()
        self._was_welcomed = True

    def told(self, message: Told) -> None:
        if isinstance(message, Events):
            self._data.take_events(self._incoming.read(message.data))
        elif isinstance(message, Withdrawn):
            self._on_withdrawn(message.subscription_id, message.reason)

    def lost(self, error: PenstockError) -> None:
        self._counters.add("upstream_lost")

    def position(self) -> int:
        return self._incoming.last_number
