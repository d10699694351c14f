"""A subscriber's core: legs on every stream that has what it wants, from its positions into live, each message once.

What it has of each stream it knows by a sequence, whoever brought it: so it goes on with any agent where it was, and
drops what comes again. It does no I/O.
"""

from collections.abc import Mapping

import msgspec

from penstock.base.clock import Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.topics import Interest
from penstock.topics.overlap import covers, may_meet
from penstock.tree.client.core.events import (
    Begin,
    BlockReceived,
    Deliver,
    Event,
    Instruction,
    Paused,
    Receipt,
    Received,
    Resumed,
    Say,
)
from penstock.tree.client.core.party import Party, PartyConfig, error_of
from penstock.tree.core.control import (
    LIVE,
    OLDEST,
    Fetch,
    Fetched,
    Held,
    Login,
    Message,
    Position,
    Refused,
    StreamInfo,
    Subscribe,
    Want,
    Welcome,
)
from penstock.tree.core.events import Connected, ConnectFailed, LinkClosed
from penstock.tree.core.infostream import Conflated, Diverged, Gone, Info, Lagging, Revoked, StreamDefined, Through
from penstock.wire import Packet

FETCH_SIZE = 1024 * 1024
SESSIONS = Interest.parse(SESSION_TOPIC)


class SubscriberConfig(PartyConfig, frozen=True, kw_only=True):
    topics: tuple[str, ...]
    where: str = ""
    since: Position = LIVE
    """Where streams begin that `positions` does not name."""

    positions: dict[str, Position] = msgspec.field(default_factory=dict)
    """Where a stream begins, by its name."""

    fetch_bytes: int = FETCH_SIZE


class _Stream(msgspec.Struct):
    """What the subscriber has of a stream."""

    info: StreamInfo
    last: int = -1
    """Everything up to this sequence; -1: it has not begun."""
    term: int = 0


class _Leg(msgspec.Struct):
    stream: int
    is_live: bool = False
    is_fetching: bool = False
    is_held: bool = False


class Subscriber(Party):
    role = "subscriber"

    def __init__(
        self, config: SubscriberConfig, randomness: Randomness, counters: Counters, *, token: str = ""
    ) -> None:
        super().__init__(config, randomness, counters, token=token)
        self._subscriber = config
        self._interests = [Interest.parse(topic) for topic in config.topics]
        self._unrevoked = [each for each in self._interests if not each.negative]
        """What was not revoked yet."""
        self._streams: dict[int, _Stream] = {}
        self._legs: dict[int, dict[int, _Leg]] = {}  # by link, then by number
        self._number = 0

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        match event:
            case Begin() | Connected() | ConnectFailed() | LinkClosed() | Received() | BlockReceived() | Tick():
                self._handle(event, now_ns)
            case Paused():
                self._is_paused = True
            case Resumed():
                self._is_paused = False
                self._heard_ns = self._asked_ns = now_ns
                self._fetch_all()
            case _:
                refuse(self, event)
        self._change_over(now_ns)
        return self._take()

    # What it has

    def positions(self) -> Mapping[str, Position]:
        """How far it is in each stream, by name: where another subscriber could go on."""
        return {each.info.name: self._position(each) for each in self._streams.values() if each.last >= 0}

    @property
    def is_live(self) -> bool:
        """Whether all that there was has been delivered, and what comes does at once."""
        legs = self._legs.get(self.link, {}).values()
        return bool(self.link) and all(each.is_live for each in legs)

    @property
    def stream_names(self) -> list[str]:
        return [each.info.name for each in self._streams.values()]

    def _position(self, stream: _Stream) -> Position:
        if stream.last < 0:
            return self._subscriber.positions.get(stream.info.name, self._subscriber.since)
        return Position("sequence", stream.last, stream.term)

    # Links

    def _login(self) -> Login:
        term = max((each.term for each in self._streams.values()), default=0)
        config = self._config
        return Login(config.name, "subscriber", config.tree, self._token, home=self._home, cls=config.cls, term=term)

    def _begin_on(self, link: int, welcome: Welcome) -> None:
        self._legs[link] = {}
        for info in welcome.streams:
            self._join(link, info)

    def _join(self, link: int, info: StreamInfo, *, is_new: bool = False) -> None:
        """Subscribe to a stream, if something of it can be wanted."""
        patterns = [Interest.parse(each) for each in info.topics]
        if not any(may_meet(mine, its) for mine in self._interests if not mine.negative for its in patterns):
            return
        stream = self._streams.setdefault(info.number, _Stream(info))
        stream.info = info
        self._number += 1
        self._legs[link][self._number] = _Leg(info.number)
        wants: tuple[Want, ...] = (Want(self._subscriber.topics, self._subscriber.where),)
        if any(may_meet(SESSIONS, its) for its in patterns):
            wants += (Want((SESSION_TOPIC,)),)  # no condition on fields is about a session
        after = self._position(stream)
        if is_new and after == LIVE:  # all of it came after this subscription began
            after = OLDEST
        self._out.append(Say(link, Subscribe(self._number, info.name, wants, after)))

    def _left(self, link: int) -> None:
        self._legs.pop(link, None)

    def _change_over(self, now_ns: int) -> None:
        """The next link is used as soon as everything is live on it, or nothing is left of the present one."""
        if self._welcomed is None or not self.link:
            return
        legs = self._legs.get(self._next, {}).values()
        if all(each.is_live for each in legs):
            self._use_next(now_ns)

    # Legs

    def _said(self, link: int, message: Message) -> None:
        legs = self._legs.get(link)
        leg = None if legs is None else legs.get(getattr(message, "number", 0))
        if legs is None or leg is None:
            self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)
            return
        match message:
            case Held():
                self._held(link, message, leg)
            case Fetched(number, through, is_live):
                leg.is_fetching = False
                self._advance(leg.stream, through)
                leg.is_live = is_live
                if not is_live:
                    self._fetch(link, number, leg)
            case Refused():
                self._fail(error_of(message))
            case _:
                self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)

    def _held(self, link: int, held: Held, leg: _Leg) -> None:
        leg.is_held = True
        stream = self._streams[leg.stream]
        if stream.last < 0:
            stream.last, stream.term = held.after, held.term
        elif held.after > stream.last:  # what is between is nowhere any more
            self._skip(stream, held.after, "gone")
        leg.is_live = held.is_live
        if not held.is_live:
            self._fetch(link, held.number, leg)

    def _fetch(self, link: int, number: int, leg: _Leg) -> None:
        if not self._is_paused and not leg.is_fetching:
            leg.is_fetching = True
            self._out.append(Say(link, Fetch(number, self._subscriber.fetch_bytes)))

    def _fetch_all(self) -> None:
        for link, legs in self._legs.items():
            for number, leg in legs.items():
                if leg.is_held and not leg.is_live:
                    self._fetch(link, number, leg)

    # Messages

    def _brought(self, link: int, packet: Packet) -> None:
        stream = self._streams.get(packet.group)
        if stream is None or packet.epoch < stream.term:
            self._counters.add("packets_dropped", cause=Cause.UNEXPECTED if stream is None else Cause.FENCED)
        elif packet.sequence <= stream.last:
            self._counters.add("messages_suppressed", cause=Cause.DUPLICATE)
        else:
            stream.last, stream.term = packet.sequence, packet.epoch
            newest = self._out[-1] if self._out else None
            if not isinstance(newest, Deliver) or newest.stream != stream.info.name:
                newest = Deliver(stream.info.name, [])
                self._out.append(newest)
            newest.messages.extend(packet)

    def _advance(self, number: int, through: int) -> None:
        stream = self._streams.get(number)
        if stream is not None and through > stream.last >= 0:
            stream.last = through

    def _skip(self, stream: _Stream, through: int, cause: str) -> None:
        self._out.append(Receipt(stream.info.name, cause, stream.last + 1, through))
        stream.last = through

    # The infostream

    def _told(self, link: int, info: Info) -> None:
        match info:
            case Through(stream=number, last=last):
                if any(leg.stream == number and leg.is_live for leg in self._legs.get(link, {}).values()):
                    self._advance(number, last)
            case Lagging():
                self._lag(link, info)
            case StreamDefined():
                self._defined(link, info)
            case Gone(stream=number, last=last):
                if (stream := self._streams.get(number)) is not None and last > stream.last:
                    self._skip(stream, last, "gone")
            case Conflated(count=count, last=last):
                self._out.append(Receipt("", "conflated", 0, last, count))
            case Diverged():
                self._diverge(info)
            case Revoked(topics=topics, reason=reason):
                self._revoked(topics, reason)

    def _lag(self, link: int, lagging: Lagging) -> None:
        leg = self._legs.get(link, {}).get(lagging.leg)
        if leg is not None:
            leg.is_live = False
            self._advance(leg.stream, lagging.last)
            self._fetch(link, lagging.leg, leg)

    def _defined(self, link: int, info: StreamDefined) -> None:
        known = self._streams.get(info.number)
        told = StreamInfo(info.number, info.name, info.topics, ((info.term, info.after),))
        legs = self._legs.get(link, {})
        if known is not None and any(leg.stream == info.number for leg in legs.values()):
            known.info = told
        elif link in self._legs:
            self._join(link, told, is_new=True)

    def _diverge(self, told: Diverged) -> None:
        """What came of that term, not what came of a newer one in its place."""
        stream = self._streams.get(told.stream)
        if stream is not None and told.first <= stream.last and stream.term <= told.term:
            self._out.append(Receipt(stream.info.name, "diverged", told.first, min(told.last, stream.last)))
            stream.last = told.first - 1

    def _revoked(self, topics: tuple[str, ...], reason: str) -> None:
        """In portions, or one after the other: when nothing is left, it is over."""
        taken = [Interest.parse(topic) for topic in topics]
        self._unrevoked = [each for each in self._unrevoked if not any(covers(one, each) for one in taken)]
        if not topics or not self._unrevoked:
            self._fail(error_of(Refused("revoked", reason or "it may no longer have this")))
