"""Subscribers of a simulated tree: an independent implementation of the protocol that checks every frame.

A subscriber delivers a message once, by its sequence; it requests missing messages, connects to another agent when its
agent fails, and moves when its agent requests it. Checkers observe its deliveries and events.
"""

from typing import TYPE_CHECKING, Any

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.net.core.control import Ping, Pong, encode_session
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.sim.tree.links import TreeEnd
from penstock.sim.tree.market import Taste
from penstock.tree.core.control import (
    LIVE,
    MESSAGE_SIZE_MAX,
    TREE,
    Class,
    Fetch,
    Fetched,
    Held,
    Login,
    Position,
    Refused,
    Subscribe,
    Welcome,
)
from penstock.tree.core.infostream import (
    Conflated,
    Diverged,
    Gone,
    Info,
    Lagging,
    MoveTo,
    ReturnTo,
    Revoked,
    Through,
    decode_info,
)
from penstock.tree.core.kernel._frame import (
    BLOCK_HEADER_SIZE,
    BLOCK_LEG_AT,
    KIND_CONTROL,
    split_packets,
)
from penstock.wire import decode

if TYPE_CHECKING:
    from penstock.sim.tree.plant import TreePlant

RETRY_NS = 30 * NS_PER_MS
FETCH_SIZE = 8_192
LENGTH_SIZE = 4


class Session:
    """One link of an application to an agent."""

    def __init__(self, end: TreeEnd) -> None:
        self.end = end
        self.out = b""
        self.frames = FrameDecoder(MESSAGE_SIZE_MAX)
        self.is_welcome = False
        self.legs: dict[int, Subscription] = {}
        self.live: set[int] = set()
        self.agent = ""

    def say(self, *messages: Any) -> None:
        self.out += b"".join(encode_frame(TREE.encode(message, MESSAGE_SIZE_MAX)) for message in messages)


class Subscription(msgspec.Struct, eq=False):
    stream: str
    taste: Taste
    begin: Position = LIVE
    number: int = 0
    """Number of the stream."""
    position: int | None = None
    """Everything up to here was delivered or reported missing; None: not subscribed yet."""
    term: int = 0
    is_refused: bool = False


class Application:
    """A process that keeps a link to an agent."""

    def __init__(self, plant: "TreePlant", name: str, places: list[str]) -> None:
        self.plant = plant
        self.world = plant.world
        self.name = name
        self.places = places
        self.is_up = False
        self.session: Session | None = None
        self.moving: Session | None = None
        self.sessions: dict[int, Session] = {}
        self._tries = 0
        self._randomness = plant.world.randomness.fork(name)
        self._is_connecting = False

    # The process

    def start(self) -> None:
        self.is_up = True
        self._connect(self.places[0])

    def stop(self) -> None:
        """End the process and its links."""
        self.is_up = False
        for session in list(self.sessions.values()):
            session.end.link.break_off(session.end)
        self.sessions.clear()
        self.session = self.moving = None

    def login(self, home: str) -> Login:
        raise NotImplementedError

    def log(self, what: str) -> None:
        self.world.log.write(self.world.now_ns(), self.name, what)

    def _connect(self, place: str, *, home: str = "", is_move: bool = False) -> None:
        if self._is_connecting or not self.is_up:
            return
        self._is_connecting = True
        target = self.plant.at_place(place)

        def done(own: TreeEnd | None, other: TreeEnd | None) -> None:
            self._is_connecting = False
            if own is None or other is None or target is None or not self.is_up:
                if own is not None:
                    own.link.break_off()
                if not is_move:
                    self._retry()
                return
            session = Session(own)
            self.sessions[own.number] = session
            if is_move and self.session is not None:
                self.moving = session
            else:
                self.session = session
            target.accept(other)
            session.say(self.login(home))
            own.pump()

        self.plant.network.connect(self, target, done)

    def _retry(self) -> None:
        self._tries += 1
        place = self.places[self._tries % len(self.places)]
        delay_ns = RETRY_NS // 3 + self._randomness.below(RETRY_NS)

        def again() -> None:
            if self.is_up and self.session is None:
                self._connect(place)

        self.world.after(delay_ns, again)

    # The link

    def send(self, link: int, size_max: int) -> bytes:
        session = self.sessions.get(link)
        if session is None:
            return b""
        data, session.out = session.out[:size_max], session.out[size_max:]
        return data

    def received(self, link: int, data: bytes) -> None:
        session = self.sessions.get(link)
        if session is None or not self.is_up:
            return
        for frame in session.frames.feed(data):
            if link in self.sessions:
                self._frame(session, frame)
        session.end.pump()

    def ended(self, link: int) -> None:
        session = self.sessions.pop(link, None)
        if session is None or not self.is_up:
            return
        if session is self.moving:
            self.moving = None
        elif session is self.session:
            self.session, self.moving = self.moving, None
            if self.session is None:
                self._retry()

    def drop(self, session: Session) -> None:
        self.sessions.pop(session.end.number, None)
        session.end.link.break_off(session.end)

    def _frame(self, session: Session, frame: bytes) -> None:
        if frame[0] >= KIND_CONTROL:
            message = TREE.decode(frame)
            if isinstance(message, Ping):
                session.out += encode_frame(encode_session(Pong(message.t1, 0, 0)))
            else:
                self.told(session, message)
            return
        at = BLOCK_LEG_AT - LENGTH_SIZE
        leg = int.from_bytes(frame[at : at + 4], "little")
        for packet in split_packets(frame[BLOCK_HEADER_SIZE - LENGTH_SIZE :]):
            self.packet(session, leg, packet)

    def told(self, session: Session, message: Any) -> None:
        raise NotImplementedError

    def packet(self, session: Session, leg: int, packet: bytes) -> None:
        raise NotImplementedError


class Subscriber(Application):
    def __init__(
        self, plant: "TreePlant", name: str, places: list[str], wants: list[Subscription], cls: Class = "lossless"
    ) -> None:
        super().__init__(plant, name, places)
        self.subscriptions = wants
        self.cls: Class = cls
        self.home = ""
        self.leg_number = 0

    def login(self, home: str) -> Login:
        return Login(self.name, "subscriber", home=home, cls=self.cls)

    def begin_anew(self, begin: Position) -> None:
        """Restart without any position, and subscribe from `begin`."""
        self.stop()
        for subscription in self.subscriptions:
            subscription.position, subscription.term, subscription.begin = None, 0, begin
        self.start()

    @property
    def is_live(self) -> bool:
        return self.session is not None and self._all_live(self.session)

    @property
    def progress(self) -> int:
        """Counts every received message."""
        return sum(each.position or 0 for each in self.subscriptions)

    def _all_live(self, session: Session) -> bool:
        wanted = [each for each in self.subscriptions if not each.is_refused]
        return session.is_welcome and len(session.live) >= len(wanted)

    def told(self, session: Session, message: Any) -> None:
        match message:
            case Welcome():
                session.is_welcome, session.agent = True, message.agent
                numbers = {info.name: info.number for info in message.streams}
                for subscription in self.subscriptions:
                    if subscription.stream not in numbers:
                        self._again(session)
                        return
                    subscription.number = numbers[subscription.stream]
                self._subscribe(session)
            case Held():
                self._held(session, message)
            case Fetched():
                self._fetched(session, message)
            case Refused():
                self._refused(session, message)

    def _again(self, session: Session) -> None:
        """The agent cannot serve the request yet: disconnect and retry."""
        self.drop(session)
        if session is self.moving:
            self.moving = None
        else:
            self.session = None
            self._retry()

    def _subscribe(self, session: Session) -> None:
        for subscription in self.subscriptions:
            if subscription.is_refused:
                continue
            self.leg_number += 1
            after = subscription.begin
            if subscription.position is not None:
                after = Position("sequence", subscription.position, subscription.term)
            session.legs[self.leg_number] = subscription
            session.say(Subscribe(self.leg_number, subscription.stream, subscription.taste.wants, after))

    def _held(self, session: Session, held: Held) -> None:
        subscription = session.legs.get(held.number)
        if subscription is None:
            return
        if subscription.position is None:
            subscription.position, subscription.term = held.after, held.term
            self.plant.began(self, subscription, held.after)
        if held.is_live:
            self._live(session, held.number)
        else:
            session.say(Fetch(held.number, FETCH_SIZE))

    def _fetched(self, session: Session, fetched: Fetched) -> None:
        subscription = session.legs.get(fetched.number)
        if subscription is None or subscription.position is None:
            return
        subscription.position = max(subscription.position, fetched.through)
        if fetched.is_live:
            self._live(session, fetched.number)
        else:
            session.say(Fetch(fetched.number, FETCH_SIZE))

    def _live(self, session: Session, leg: int) -> None:
        session.live.add(leg)
        if session is self.moving and self._all_live(session):
            old, self.session, self.moving = self.session, session, None
            self.log(f"moved to {session.agent}")
            if old is not None:
                self.drop(old)

    def _refused(self, session: Session, refused: Refused) -> None:
        self.log(f"refused: {refused}")
        subscription = session.legs.pop(refused.number, None)
        if subscription is not None and refused.code in ("not-entitled", "revoked"):
            subscription.is_refused = True
        elif refused.number:
            self._again(session)

    def packet(self, session: Session, leg: int, packet: bytes) -> None:
        whole = decode(packet)
        if whole.group == 0:
            heard = decode_info(packet)
            self.plant.heard(self, session.agent, heard.publisher_id, heard.info)
            self._info(session, heard.info)
            return
        message = whole[0]
        for number, subscription in session.legs.items():
            if subscription.number != whole.group or (leg not in (0, number)) or subscription.position is None:
                continue
            if leg == 0 and number not in session.live:
                continue
            if whole.sequence > subscription.position and subscription.taste.wants_it(message.topic, message.payload):
                subscription.position, subscription.term = whole.sequence, whole.epoch
                payload = bytes(message.payload)
                self.plant.delivered(self, subscription, whole.sequence, whole.epoch, message.topic, payload)

    def _info(self, session: Session, info: Info) -> None:
        match info:
            case Lagging():
                if info.leg in session.legs:
                    session.live.discard(info.leg)
                    session.say(Fetch(info.leg, FETCH_SIZE))
            case Through():
                for number, each in session.legs.items():
                    if each.number == info.stream and number in session.live and each.position is not None:
                        each.position = max(each.position, info.last)
                        each.term = max(each.term, info.term)
            case Gone():
                self.plant.gone(self, info)
            case Diverged():
                self._diverged(info)
            case Conflated():
                self.plant.conflated(self, info)
            case Revoked():
                self.plant.revoked(self, info)
            case MoveTo():
                if self.moving is None and session is self.session:
                    self.home = session.agent
                    self._connect(info.place, home=self.home, is_move=True)
            case ReturnTo():
                if self.moving is None and session is self.session and self.home:
                    self._connect(self.plant.place_of(self.home), is_move=True)

    def _diverged(self, info: Diverged) -> None:
        for each in self.subscriptions:
            is_old = each.term <= info.term and each.position is not None and each.position >= info.first
            if each.number == info.stream and is_old:
                each.position = info.first - 1
                self.plant.diverged(self, each, info)
