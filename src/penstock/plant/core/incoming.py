"""The events of the upstream node of a multiplexer or edge cache, as updates of this node. No I/O.

Item numbers of the upstream node are translated, versions are kept. Updates may take several paths (the control
connection, datagrams, the group) and overtake each other; the newest event of an item counts.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.base.errors import RemoteProtocolError
from penstock.engine.core.events import (
    Image,
    Lost,
    Reconcile,
    RecordWithdrawn,
    Removed,
    SessionTold,
    UpstreamLive,
)
from penstock.engine.core.kernel._event import Event, EventFlag, EventKind, read_events
from penstock.engine.core.session_events import decode_session, session_id

ITEMS_MAX = 16_000_000
"""Maximum number of items that the upstream node may define on one connection."""

EARLY_MAX = 4_096
"""Maximum number of updates kept until their items are defined."""

SESSIONS_MAX = 4_096
"""Maximum number of sessions, running and ended, whose late updates are recognised."""

_OF_ITEMS = (EventKind.UPDATE, EventKind.REFRESH, EventKind.WITHDRAW)

K = TypeVar("K")


class Updated(NamedTuple):
    """An update of an item of the upstream node, in the form of the engine's kernel."""

    topic: bytes
    model_id: int
    model_version: int
    record: bytes
    started_ns: int
    version: int
    merged: int = 1
    """Number of updates that this one stands for."""
    session_id: int = 0
    """The session of the record (engine/core/session_events.py); 0 if unknown."""


FromAbove: TypeAlias = Updated | Image | RecordWithdrawn | Removed | UpstreamLive | Reconcile | SessionTold | Lost


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
