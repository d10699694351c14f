"""The link of a multiplexer or edge cache to its upstream node.

The engine reports the combined interests of its consumers, which are subscribed upstream. Events of the upstream node
become this node's updates (core/incoming.py). After the link was lost and restored, consumers get a loss receipt for
the interruption, and refreshes.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping, Sequence

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError, RemoteProtocolError
from penstock.base.log import logger
from penstock.engine.control import (
    TOPICS_MAX,
    ClassWish,
    Events,
    GroupKeys,
    Login,
    RefusalCode,
    Vouched,
    Welcome,
    Withdrawn,
)
from penstock.engine.core.events import LearnModel, Reconcile
from penstock.engine.live.link import NodeLink, Told
from penstock.model import MessageModel
from penstock.net.secret import Secret
from penstock.net.udp import Address
from penstock.plant.core.incoming import Incoming
from penstock.plant.live.data_path import DataPath
from penstock.plant.live.datagrams import DatagramReceiver, Way

RECONCILE_SECONDS = 60.0
"""Time after the login at a restarted upstream node until records that it does not have are withdrawn."""

GROUP_KEY_GRACE_S = 2.0
"""Time after the loss of the control connection until packets of the group are no longer accepted."""

log = logger("plant.upstream")


class Upstream:
    """The link to the upstream node, from start() to close(). Call it in the thread of the loop, except wanted() and
    unwanted()."""

    def __init__(
        self,
        name: str,
        address: Address,
        data: DataPath,
        *,
        cls: ClassWish,
        per_second: float,
        secret: Secret | None,
        tls: ssl.SSLContext | None,
        counters: Counters,
        on_withdrawn: Callable[[str, str], None],
        known: Mapping[int, int],
        interface: str = "",
    ) -> None:
        """`known` has the versions of this node's models, by id; other models are requested from the upstream node.
        With `interface`, events come by UDP to its address."""
        self._data = data
        self._cls = cls
        self._per_second = per_second
        self._counters = counters
        self._on_withdrawn = on_withdrawn
        self._loop = asyncio.get_running_loop()
        self._incoming = Incoming(self._topics_of, self._meet)
        self._known = dict(known)
        self._asked: set[tuple[int, int]] = set()
        self._numbers: dict[str, int] = {}  # of upstream subscriptions, by topic
        self._groups: dict[int, set[str]] = {}  # topics by upstream subscription
        self._changes: asyncio.Queue[tuple[bool, tuple[str, ...]]] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._was_welcomed = False
        self._epoch = 0
        self._reconciling: asyncio.TimerHandle | None = None
        self._keys_end: asyncio.TimerHandle | None = None
        self._datagrams: DatagramReceiver | None = None
        login = Login(name, "session", is_node=True)
        if interface:
            self._datagrams = DatagramReceiver(interface, self, counters)
            port, takes_group = self._datagrams.port, cls == "adaptive"
            login = Login(name, "datagram", is_node=True, port=port, takes_group=takes_group)
        self.link = NodeLink(address, login, self, secret=secret, tls=tls)

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self.link.run()), asyncio.create_task(self._follow())]

    async def close(self) -> None:
        for timer in (self._reconciling, self._keys_end):
            if timer is not None:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._datagrams is not None:
            await asyncio.to_thread(self._datagrams.close)

    # Calls from the engine, in any thread

    def wanted(self, topics: Sequence[str]) -> None:
        self._change(True, topics)

    def unwanted(self, topics: Sequence[str]) -> None:
        self._change(False, topics)

    def _change(self, is_wanted: bool, topics: Sequence[str]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._changes.put_nowait, (is_wanted, tuple(topics)))

    async def _follow(self) -> None:
        """Subscribe and unsubscribe upstream, in the order of the engine's calls."""
        while True:
            is_wanted, topics = await self._changes.get()
            try:
                if is_wanted and not topics:
                    await self._want_anew()
                elif is_wanted:
                    for at in range(0, len(topics), TOPICS_MAX):
                        await self._want(topics[at : at + TOPICS_MAX])
                else:
                    await self._release(topics)
            except PenstockError as error:
                log.warning("upstream_refused", topics=len(topics), code=error.code, error=str(error))
                self._counters.add("requests_refused", cause=RefusalCode.UPSTREAM)

    async def _want(self, topics: Sequence[str]) -> None:
        """Subscribe to these topics in one subscription, because topics that are requested together usually end
        together."""
        number = self.link.reserve()
        self._groups[number] = set(topics)  # the LIVE event may come before the answer
        self._numbers |= dict.fromkeys(topics, number)
        try:
            await self.link.subscribe(topics, self._cls, self._per_second, number=number)
        except PenstockError:
            self._forget(topics)
            raise

    async def _want_anew(self) -> None:
        for number, topics in list(self._groups.items()):
            del self._groups[number]
            try:  # first, because the upstream node sends no image of items that it has already sent
                await self.link.unsubscribe(number)
            finally:
                await self._want(sorted(topics))

    async def _release(self, topics: Sequence[str]) -> None:
        numbers = {self._numbers[topic] for topic in topics if topic in self._numbers}
        self._forget(topics)
        for number in numbers:
            left = self._groups.pop(number, set())
            if left:
                await self._want(sorted(left))
            await self.link.unsubscribe(number)

    def _forget(self, topics: Sequence[str]) -> None:
        for topic in topics:
            number = self._numbers.pop(topic, 0)
            if (group := self._groups.get(number)) is not None:
                group.discard(topic)

    def _topics_of(self, number: int) -> Sequence[str]:
        return tuple(self._groups.get(number, ()))

    # Requests for downstream consumers

    async def vouch(self, name: str, token: str, topics: Sequence[str] = ()) -> Vouched:
        return await self.link.vouch(name, token, topics)

    async def snapshot(self, topics: Sequence[str]) -> list[bytes]:
        return await self.link.snapshot(topics)

    async def model(self, model_id: int, version: int) -> str:
        return await self.link.model(model_id, version)

    # Unknown models, in any thread

    def _meet(self, model_id: int, version: int) -> None:
        key = model_id, version
        if self._known.get(model_id, -1) < version and key not in self._asked:
            self._asked.add(key)
            asyncio.run_coroutine_threadsafe(self._learn(model_id, version), self._loop)

    async def _learn(self, model_id: int, version: int) -> None:
        """Request a model. Until it is known, updates of its items are sent one by one."""
        try:
            model = MessageModel.parse(await self.link.model(model_id, version), where="model of the upstream node")
            if model.id != model_id:
                raise RemoteProtocolError(f"requested model {model_id}, the upstream node sent {model.id}")
            self._known[model_id] = max(version, model.version)
            await asyncio.wrap_future(self._data.ask(lambda: self._data.handle(LearnModel(model))))
            log.info("model_learned", model=model.name, model_id=model_id, version=model.version)
        except PenstockError as error:
            log.warning("model_not_learned", model_id=model_id, version=version, error=str(error))
            self._asked.discard((model_id, version))  # requested again when an item of the model is next defined

    # Events of the link

    async def welcomed(self, welcome: Welcome) -> None:
        if self._keys_end is not None:
            self._keys_end.cancel()
            self._keys_end = None
        if self._datagrams is not None:
            await asyncio.to_thread(self._datagrams.rest)
        is_split = bool(welcome.fresh_port or welcome.group)
        is_resumed = welcome.epoch == self._epoch and self._incoming.last_number > 0
        self._epoch = welcome.epoch
        self._incoming.begin(is_again=self._was_welcomed, is_split=is_split)
        if self._reconciling is not None:
            self._reconciling.cancel()
            self._reconciling = None
        if self._was_welcomed and not is_resumed:  # otherwise the upstream node reports what was withdrawn meanwhile
            self._reconciling = self._loop.call_later(RECONCILE_SECONDS, self._reconcile)
        if self._was_welcomed:
            self._data.lose()
        self._was_welcomed = True
        if self._datagrams is not None:
            self._datagrams.follow(welcome)

    def _reconcile(self) -> None:
        """The restarted upstream node has had time to get its images: withdraw the records that it does not have."""
        self._reconciling = None
        topics = sorted(set().union(*self._groups.values()))
        if topics:
            self._data.take_events([Reconcile(topics, frozenset(self._incoming.told))])

    async def told(self, message: Told) -> None:
        if isinstance(message, Events):
            self._data.take_events(self._incoming.read(message.data))
        elif isinstance(message, Withdrawn):
            self._on_withdrawn(message.subscription_id, message.reason)
        elif isinstance(message, GroupKeys) and self._datagrams is not None:
            self._datagrams.use_group_keys(message.keys)

    def lost(self, error: PenstockError) -> None:
        """Stop accepting packets of the group soon: its keys may be replaced while this node is disconnected."""
        self._counters.add("upstream_lost")
        if self._datagrams is not None and self._keys_end is None:
            self._keys_end = self._loop.call_later(GROUP_KEY_GRACE_S, self._datagrams.use_group_keys, ())

    def position(self) -> int:
        return self._incoming.last_number

    # Calls from the receiver of datagrams, in its thread

    def take_datagram(self, data: bytes, way: Way) -> None:
        if way == "sure":
            self._data.take_events(self._incoming.read(data))
        else:
            self._data.take_events(self._incoming.read_fresh(data, is_group=way == "group"))

    def lose_datagrams(self) -> None:
        """Request images: subscribe again to all topics."""
        self._counters.add("upstream_lost", cause="datagrams")
        self._incoming.repair()
        self._data.lose()
        self._change(True, ())

    def miss_datagrams(self, first_sequence: int, last_sequence: int) -> None:
        self._counters.add("upstream_missed", last_sequence - first_sequence + 1)
        asyncio.run_coroutine_threadsafe(self._tell_missed(first_sequence, last_sequence), self._loop)

    def hear_no_group(self) -> None:
        """Give up the group: ask the upstream node to send the updates in this node's own stream."""
        log.warning("group_not_heard", hint="check that the network delivers multicast to this interface")
        asyncio.run_coroutine_threadsafe(self._tell_missed(0, 0), self._loop)

    async def _tell_missed(self, first_sequence: int, last_sequence: int) -> None:
        with contextlib.suppress(PenstockError):  # the connection is lost; images follow on the next one
            await self.link.missed(first_sequence, last_sequence)
