"""The link of a multiplexer or edge cache to its upstream node, and the events that arrive through it.

The engine reports the combined interests of its consumers, which are subscribed upstream. Events of the upstream node
become this node's updates: item numbers are translated, versions are kept. After the link was lost and restored,
consumers get a loss receipt for the interruption, and refreshes.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

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
from penstock.engine.core.events import (
    Image,
    LearnModel,
    Lost,
    Reconcile,
    RecordWithdrawn,
    Removed,
    SessionTold,
    UpstreamLive,
)
from penstock.engine.core.kernel._event import Event, EventFlag, EventKind, read_events
from penstock.engine.core.session_events import decode_session, session_id
from penstock.engine.live.link import NodeLink, Told
from penstock.model import MessageModel
from penstock.net.secret import Secret
from penstock.net.udp import Address
from penstock.plant.live.datagrams import DatagramReceiver, Way
from penstock.plant.live.datapath import DataPath, FromAbove, Updated

ITEMS_MAX = 16_000_000
"""Maximum number of items that the upstream node may define on one connection."""

RECONCILE_SECONDS = 60.0
"""Time after the login at a restarted upstream node until records that it does not have are withdrawn."""

GROUP_KEY_GRACE_S = 2.0
"""Time after the loss of the control connection until packets of the group are no longer accepted."""

EARLY_MAX = 4_096
"""Maximum number of updates kept until their items are defined."""

SESSIONS_MAX = 4_096
"""Maximum number of sessions, running and ended, whose late updates are recognised."""

_OF_ITEMS = (EventKind.UPDATE, EventKind.REFRESH, EventKind.WITHDRAW)

K = TypeVar("K")

log = logger("plant.upstream")


class Defined(NamedTuple):
    """An item of the upstream node."""

    topic: bytes
    model_id: int
    model_version: int


class Incoming:
    """Decodes the events of the upstream node on one connection, without I/O. Malformed data is an error, which ends
    the connection."""

    def __init__(
        self, topics_of: Callable[[int], Sequence[str]], defined: Callable[[int, int], None] = lambda *_: None
    ) -> None:
        """`defined` is called with the model id and version of every item."""
        self.last_number = 0
        self._defined = defined
        self._topics_of = topics_of
        self._items: dict[int, Defined] = {}
        self._is_split = False
        # newest update number at the upstream node, for items whose updates may take several paths
        self._numbers: dict[int, int] = {}
        self._early: dict[int, Event] = {}  # updates that came through the group before their items were defined
        self._running: dict[tuple[str, int], int] = {}  # by source stream: the session id of its last session
        self._over: dict[int, int] = {}  # by session id: the number of the SESSION event that ended the session
        self._is_again = self._is_repairing = self._is_patchy = False
        self._shown: set[int] = set()  # items with events on this connection
        self._met: set[tuple[bytes, int]] = set()  # topics and models defined on this connection
        self._resumed: set[int] = set()  # items defined again after an interruption
        self._is_patched = False  # events were lost, possibly withdrawals among them
        self.told: set[tuple[bytes, int]] = set()
        """Topics and models defined since this connection began, or since events were lost."""

    def begin(self, *, is_again: bool, is_split: bool = False) -> None:
        """Begin a new connection. `is_again` is true if there was one before, so consumers may have missed events.
        `is_split` says that updates take several paths and may overtake each other."""
        self._items.clear()
        self._numbers.clear()
        self._early.clear()
        self._running.clear()
        self._over.clear()
        self._is_split = is_split
        self._shown.clear()
        self._met.clear()
        self._resumed.clear()
        self.last_number = 0
        self._is_again = self._is_repairing = is_again
        self._is_patchy = self._is_patched = False
        self.told.clear()

    def read_fresh(self, data: bytes, *, is_group: bool = False) -> Iterator[FromAbove]:
        """Read updates of a separate path: they may arrive before their item is defined, or be overtaken. The group
        also carries items that only other members subscribe to."""
        for event in read_events(data):
            if event.kind != EventKind.UPDATE:
                continue
            if (item := self._items.get(event.item)) is None:
                if is_group:
                    self._keep_early(event)
            elif self._is_current(event):
                yield self._update(item, event)

    def _keep_early(self, event: Event) -> None:
        before = self._early.pop(event.item, None)
        self._early[event.item] = event if before is None or before.number < event.number else before
        if len(self._early) > EARLY_MAX:
            del self._early[next(iter(self._early))]

    def _is_current(self, event: Event) -> bool:
        """True unless a newer event of the item, or the end of the record's session, has overtaken the update."""
        return event.number > self._over.get(event.session_id, 0) and self._is_newest(event.item, event.number)

    def _is_newest(self, item: int, number: int) -> bool:
        """The upstream node's update numbers only grow during a connection; versions may restart with its plant."""
        if number <= self._numbers.get(item, 0):
            return False
        self._numbers[item] = number
        return True

    def read(self, data: bytes) -> Iterator[FromAbove]:
        for event in read_events(data):
            if self._is_patchy and event.kind in _OF_ITEMS and event.item not in self._items:
                continue  # the definition was lost; another one with an image follows
            match event.kind:
                case EventKind.DEFINE:
                    yield from self._define(event)
                case EventKind.UPDATE:
                    item = self._item(event.item)
                    self.last_number = max(self.last_number, event.number)
                    if not self._is_split or self._is_newest(event.item, event.number) or _is_each(event):
                        yield self._update(item, event)
                case EventKind.REFRESH:
                    item = self._item(event.item)
                    self._shown.add(event.item)
                    if event.number < self._numbers.get(event.item, 0):
                        continue  # a newer update came by the other path
                    if self._is_split:
                        self._numbers[event.item] = event.number
                    yield self._image(item, event)
                case EventKind.RECEIPT:
                    self._is_repairing = True
                    yield Lost()
                case EventKind.WITHDRAW:
                    yield from self._withdraw(event)
                case EventKind.SESSION:
                    self.last_number = max(self.last_number, event.number)
                    if self._is_split:
                        self._note_session(event)
                    yield SessionTold(event.body)
                case EventKind.LIVE:
                    topics = self._topics_of(event.subscription)
                    if self._is_patched and topics:
                        yield Reconcile(topics, self.told)
                    yield UpstreamLive(topics)
                case EventKind.REMOVE:
                    gone = self._items.pop(event.item, None)
                    self._numbers.pop(event.item, None)
                    self._resumed.discard(event.item)
                    if gone is not None:
                        yield Removed(gone.topic, gone.model_id)

    def _withdraw(self, event: Event) -> Iterator[FromAbove]:
        item = self._item(event.item)
        self.last_number = max(self.last_number, event.number)
        self._shown.add(event.item)
        if event.number < self._numbers.get(event.item, 0):
            return  # a newer update came by the other path
        if self._is_split:
            self._numbers[event.item] = event.number
        yield RecordWithdrawn(item.topic, item.model_id, event.version)

    def _note_session(self, event: Event) -> None:
        """The last updates of an ended session may still come by the other path."""
        try:
            told = decode_session(event.body)
        except RemoteProtocolError:
            return  # the engine counts it
        stream, session = (told.feed, told.stream_id), session_id(told)
        over = session if told.kind == "end" else self._running.get(stream, 0)
        if over:
            _keep(self._over, over, max(event.number, self._over.get(over, 0)))
        _keep(self._running, stream, session)

    def _define(self, event: Event) -> Iterator[FromAbove]:
        if len(self._items) >= ITEMS_MAX:
            raise RemoteProtocolError(f"the upstream node defines more than {ITEMS_MAX} items")
        item = Defined(event.topic, event.model_id, event.model_version)
        if self._items.get(event.item, item) != item:
            self._numbers.pop(event.item, None)  # of the item that had this number before
            self._shown.discard(event.item)
        self._items[event.item] = item
        if len(self.told) < ITEMS_MAX:
            self.told.add((item.topic, item.model_id))
        if (item.topic, item.model_id) in self._met:
            self._resumed.add(event.item)
            self._shown.discard(event.item)
        elif len(self._met) < ITEMS_MAX:
            self._met.add((item.topic, item.model_id))
        self._defined(event.model_id, event.model_version)
        if (early := self._early.pop(event.item, None)) is not None and self._is_current(early):
            yield self._update(item, early)

    def _update(self, item: Defined, event: Event) -> FromAbove:
        """Convert an update. The first one of an item after a new connection or subscription is not merged with
        earlier ones, because a restarted plant counts versions anew and consumers skip versions that they have.
        Updates of the earlier subscription may have arrived, and updates in between are lost."""
        is_first = event.item not in self._shown and (self._is_again or event.item in self._resumed)
        self._shown.add(event.item)
        if is_first:
            return self._image(item, event)
        return Updated(*item, event.body, event.started_ns, event.version, event.merged, event.session_id)

    def _image(self, item: Defined, event: Event) -> Image:
        return Image(*item, event.version, event.body, event.started_ns, self._is_repairing, event.session_id)

    def repair(self) -> None:
        """Prepare for images after events were lost. Definitions may be among the lost events, so known numbers may
        belong to other items by now: every definition has to come again."""
        self._is_repairing = self._is_patchy = self._is_patched = True
        self.told.clear()
        self._items.clear()
        self._shown.clear()
        self._resumed.clear()

    def _item(self, number: int) -> Defined:
        try:
            return self._items[number]
        except KeyError:
            raise RemoteProtocolError(f"the upstream node sends item {number} before its definition") from None


def _keep(numbers: dict[K, int], key: K, number: int) -> None:
    """Set a number; the oldest one gives way."""
    numbers.pop(key, None)
    numbers[key] = number
    if len(numbers) > SESSIONS_MAX:
        del numbers[next(iter(numbers))]


def _is_each(event: Event) -> bool:
    """True if the update must not be skipped, even if it is late."""
    return bool(event.flags & EventFlag.NONCONFLATABLE)


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
