"""Subscriber: the core of a subscriber; it has a leg of every stream with wanted topics; each message comes once.

It knows its position in each stream by a sequence that is the same at every agent: so it continues at any agent after
its last message, and drops duplicates. It does no I/O.
"""

from collections.abc import Mapping

import msgspec

from penstock.base.clock import Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.net.core.client_session import Begin, Connected, ConnectFailed, LinkClosed, Received, Say
from penstock.topics import Interest
from penstock.topics.overlap import covers, may_meet
from penstock.tree.client.core.events import (
    BlockReceived,
    Deliver,
    Event,
    Instruction,
    Paused,
    Receipt,
    Resumed,
)
from penstock.tree.client.core.tree_client import TreeClient, TreeClientConfig, error_of
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
from penstock.tree.core.infostream import Conflated, Diverged, Gone, Info, Lagging, Revoked, StreamDefined, Through
from penstock.tree.core.kernel._frame import (
    BLOCK_HEADER_SIZE,
    BLOCK_KIND_AT,
    BLOCK_SIZE_MAX,
    FRAME_LENGTH_SIZE,
    KIND_PACKETS,
)
from penstock.wire import Packet
from penstock.wire._codec import PACKET_GROUP_AT
from penstock.wire._packet_run import take_run

FETCH_SIZE = 1024 * 1024
SESSIONS = Interest.parse(SESSION_TOPIC)


class SubscriberConfig(TreeClientConfig, frozen=True, kw_only=True):
    topics: tuple[str, ...]
    where: str = ""
    since: Position = LIVE
    """Where to begin in streams that `positions` does not name."""

    positions: dict[str, Position] = msgspec.field(default_factory=dict)
    """Where to begin, by name of the stream."""

    fetch_bytes: int = FETCH_SIZE


GROUP_END = PACKET_GROUP_AT + 4


class _Stream(msgspec.Struct):
    """The subscriber's position in a stream."""

    info: StreamInfo
    last: int = -1
    """Everything up to this sequence is delivered; -1: nothing is."""
    term: int = 0


class _Leg(msgspec.Struct):
    stream: int
    is_live: bool = False
    is_fetching: bool = False
    is_held: bool = False


class Subscriber(TreeClient):
    role = "subscriber"

    def __init__(
        self, config: SubscriberConfig, randomness: Randomness, counters: Counters, *, token: str = ""
    ) -> None:
        super().__init__(config, randomness, counters, token=token)
        self._subscriber = config
        self._interests = [Interest.parse(topic) for topic in config.topics]
        self._unrevoked = [each for each in self._interests if not each.negative]
        """Interests that are not revoked."""
        self._streams: dict[int, _Stream] = {}
        self._legs: dict[int, dict[int, _Leg]] = {}  # by link, then by number
        self._number = 0
        self._is_paused = False

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        match event:
            case Begin() | Connected() | ConnectFailed() | LinkClosed() | Received() | BlockReceived() | Tick():
                self._handle(event, now_ns)
            case Paused():
                self._links.pause()
                self._is_paused = True
            case Resumed():
                self._links.resume(now_ns)
                self._is_paused = False
                self._fetch_all()
            case _:
                refuse(self, event)
        self._change_over(now_ns)
        return self._take_instructions()

    # State

    def positions(self) -> Mapping[str, Position]:
        """The position in each stream, by name: another subscriber can go on there."""
        return {each.info.name: self._position(each) for each in self._streams.values() if each.last >= 0}

    @property
    def is_live(self) -> bool:
        """True if the past is delivered, and new messages are delivered as they come."""
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
        """Subscribe to the stream, if one of its topics may be wanted."""
        patterns = [Interest.parse(each) for each in info.topics]
        if not any(may_meet(mine, its) for mine in self._interests if not mine.negative for its in patterns):
            return
        stream = self._streams.setdefault(info.number, _Stream(info))
        stream.info = info
        self._number += 1
        self._legs[link][self._number] = _Leg(info.number)
        wants: tuple[Want, ...] = (Want(self._subscriber.topics, self._subscriber.where),)
        if any(may_meet(SESSIONS, its) for its in patterns):
            wants += (Want((SESSION_TOPIC,)),)  # conditions on fields do not apply to session events
        after = self._position(stream)
        if is_new and after == LIVE:  # all its messages came after this subscription began
            after = OLDEST
        self._out.append(Say(link, Subscribe(self._number, info.name, wants, after)))

    def _link_left(self, link: int) -> None:
        self._legs.pop(link, None)

    def _change_over(self, now_ns: int) -> None:
        """Use the next link as soon as everything is live on it."""
        if self._links.next_welcome is None or not self.link:
            return
        legs = self._legs.get(self._links.next_link, {}).values()
        if all(each.is_live for each in legs):
            self._do(self._links.use_next(now_ns))

    # Legs

    def _message_received(self, link: int, message: Message) -> None:
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
        elif held.after > stream.last:  # the messages in between are no longer stored
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

    def take_frames(self, data: bytes) -> tuple[list[Instruction], int, bytes]:
        """Take whole frames with packets that need no further checks, in the order of their link.

        Return the instructions that deliver them, the offset after the last whole frame, and the frames from the first
        unusual one on. The caller passes those to handle() next; the offset has no meaning then.
        """
        at, size = 0, len(data)
        while size - at > BLOCK_KIND_AT:
            if data[at + BLOCK_KIND_AT] == KIND_PACKETS and size - at < BLOCK_HEADER_SIZE:
                break
            end = at + FRAME_LENGTH_SIZE + int.from_bytes(data[at : at + FRAME_LENGTH_SIZE], "little")
            if data[at + BLOCK_KIND_AT] != KIND_PACKETS or not BLOCK_HEADER_SIZE <= end - at <= BLOCK_SIZE_MAX:
                return self._take_instructions(), at, data[at:]
            if end > size:
                break
            taken = at + BLOCK_HEADER_SIZE
            while taken < end:
                run_end = self._take_run(data, taken, end)
                if not run_end:
                    length = BLOCK_HEADER_SIZE - FRAME_LENGTH_SIZE + end - taken
                    head = data[at + FRAME_LENGTH_SIZE : at + BLOCK_HEADER_SIZE]
                    rest = length.to_bytes(FRAME_LENGTH_SIZE, "little") + head + data[taken:]
                    return self._take_instructions(), at, rest
                taken = run_end
            at = end
        return self._take_instructions(), at, b""

    def _take_run(self, packets: bytes, at: int, end: int) -> int:
        stream = self._streams.get(int.from_bytes(packets[at + PACKET_GROUP_AT : at + GROUP_END], "little"))
        if stream is None or stream.last < 0:
            return 0
        run = take_run(packets, at, end, stream.info.number, stream.term, stream.last)
        if run is None:
            return 0
        stream.last = run.last
        self._out.append(Deliver(stream.info.name, run))
        return run.end

    def _packet_received(self, link: int, packet: Packet) -> None:
        stream = self._streams.get(packet.group)
        if stream is None or packet.epoch < stream.term:
            self._counters.add("packets_dropped", cause=Cause.UNEXPECTED if stream is None else Cause.FENCED)
        elif packet.sequence <= stream.last:
            self._counters.add("messages_suppressed", cause=Cause.DUPLICATE)
        else:
            stream.last, stream.term = packet.sequence, packet.epoch
            self._out.append(Deliver(stream.info.name, list(packet)))

    def _advance(self, number: int, through: int) -> None:
        stream = self._streams.get(number)
        if stream is not None and through > stream.last >= 0:
            stream.last = through

    def _skip(self, stream: _Stream, through: int, cause: str) -> None:
        self._out.append(Receipt(stream.info.name, cause, stream.last + 1, through))
        stream.last = through

    # The infostream

    def _informed(self, link: int, info: Info) -> None:
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
        stream = StreamInfo(info.number, info.name, info.topics, ((info.term, info.after),))
        legs = self._legs.get(link, {})
        if known is not None and any(leg.stream == info.number for leg in legs.values()):
            known.info = stream
        elif link in self._legs:
            self._join(link, stream, is_new=True)

    def _diverge(self, diverged: Diverged) -> None:
        """Withdraw messages of that term, but not those of a newer term with the same sequences."""
        stream = self._streams.get(diverged.stream)
        if stream is not None and diverged.first <= stream.last and stream.term <= diverged.term:
            self._out.append(Receipt(stream.info.name, "diverged", diverged.first, min(diverged.last, stream.last)))
            stream.last = diverged.first - 1

    def _revoked(self, topics: tuple[str, ...], reason: str) -> None:
        """Revocations come in portions; when no interest is left, the subscription has failed."""
        taken = [Interest.parse(topic) for topic in topics]
        self._unrevoked = [each for each in self._unrevoked if not any(covers(one, each) for one in taken)]
        if not topics or not self._unrevoked:
            self._fail(error_of(Refused("revoked", reason or "the entitlement was revoked")))
