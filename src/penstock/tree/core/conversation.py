"""What comes on an agent's links besides live packets: control messages, portions of the past, the infostream."""

from collections.abc import Callable

from penstock.base.counters import Cause
from penstock.base.errors import PacketError, RemoteProtocolError
from penstock.net.core.control import ErrorMessage, Goodbye, Ping, Pong, UnknownMessageError, encode_session
from penstock.net.core.framing import encode_frame
from penstock.tree.core.board import Board
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.children import Children
from penstock.tree.core.control import (
    TREE,
    Bearers,
    Fetch,
    Fetched,
    Held,
    Published,
    Refused,
    RenewToken,
    Stored,
    Subscribe,
    Unsubscribe,
    Welcome,
)
from penstock.tree.core.events import CheckToken
from penstock.tree.core.hearing import Hearing
from penstock.tree.core.kernel.notices import LegBlock
from penstock.tree.core.legs import UpstreamLeg
from penstock.tree.core.parents import Parents
from penstock.tree.core.root.sequencer import Rooting
from penstock.tree.core.upstream import Upstream


class Conversation:
    """`end` ends a link, for a cause and a reason."""

    def __init__(
        self,
        board: Board,
        upstream: Upstream,
        catch_up: CatchUp,
        children: Children,
        parents: Parents,
        rooting: Rooting,
        end: Callable[[int, str, str], None],
    ) -> None:
        self._board = board
        self._upstream = upstream
        self._catch_up = catch_up
        self._children = children
        self._parents = parents
        self._rooting = rooting
        self._hearing = Hearing(board, upstream, catch_up, children, parents, rooting)
        self._end = end
        self.newer_term = self._hearing.newer_term

    def control(self, link: int, payload: bytes) -> None:
        try:
            message = TREE.decode(payload)
        except UnknownMessageError:
            self._board.counters.add("messages_skipped", cause=Cause.MESSAGE)
            return
        except RemoteProtocolError as error:
            self._misbehaved(link, str(error))
            return
        match message:
            case Ping():
                now_ns = self._board.now_ns
                pong = encode_frame(encode_session(Pong(message.t1, now_ns, now_ns)))
                self._board.send(link, pong, is_behind=False)
            case Pong():
                pass
            case Goodbye() | ErrorMessage():
                self._end(link, Cause.GOODBYE, "")
            case Welcome() | Held() | Fetched() | Published() | Refused():
                self._from_above(link, message)
            case Bearers(bearers):
                if self._board.role == "standby" and link == self._rooting.replica.link:
                    self._rooting.replica.note_bearers(bearers)
            case Subscribe() | Fetch() | Unsubscribe() | Stored() | RenewToken():
                self._from_below(link, message)
            case _:
                self._misbehaved(link, f"a {type(message).__name__} out of turn")

    def _misbehaved(self, link: int, why: str) -> None:
        self._board.counters.add("connections_closed", cause=Cause.MESSAGE)
        self._board.say(link, Refused("message", why[:256]))
        self._end(link, Cause.MESSAGE, why)

    def _from_below(self, link: int, message: Subscribe | Fetch | Unsubscribe | Stored | RenewToken) -> None:
        child = self._board.children.get(link)
        if child is None:
            return
        match message:
            case Subscribe():
                self._children.subscribe(child, message)
            case Fetch():
                self._children.fetch(child, message)
            case Unsubscribe():
                self._children.unsubscribe(child, message)
            case Stored():
                self._rooting.stored(link, message)
            case RenewToken():
                self._board.out.append(CheckToken(link, message.token))
        if child.party.role == "standby":
            self._rooting.note_standbys()

    def _from_above(self, link: int, message: Welcome | Held | Fetched | Published | Refused) -> None:
        attempt = self._parents.attempt_on(link)
        if isinstance(message, Welcome):
            if attempt is not None:
                self._parents.welcome(attempt, message)
        elif isinstance(message, Refused) and not message.number:
            if attempt is not None:
                self._parents.refused(attempt, message)
            else:
                self._end(link, message.code, message.reason)
        elif not isinstance(message, Published):
            leg = self._upstream.leg(link, message.number)
            if leg is not None:
                self._of_leg(leg, message)

    def _of_leg(self, leg: UpstreamLeg, message: Held | Fetched | Refused) -> None:
        if isinstance(message, Refused):
            self._catch_up.relay_refused(leg, message)
            self._upstream.refused(leg)
        elif leg.child is not None:
            if isinstance(message, Held):
                self._catch_up.relay_held(leg, message)
            else:
                self._catch_up.relay_fetched(leg, message)
        elif isinstance(message, Held):
            self._upstream.held(leg, message)
        else:
            self._upstream.fetched(leg, message)

    def block(self, notice: LegBlock) -> None:
        leg = self._upstream.leg(notice.link, notice.leg)
        if leg is None:
            return
        if leg.child is not None:
            self._catch_up.relay_block(leg, notice.packets)
        elif self._board.role != "standby":
            self._upstream.block(leg, notice.packets)
        elif not self._rooting.replica.block(leg, notice.packets):
            self._upstream.lagging(leg)

    def info(self, link: int, packet: bytes) -> None:
        """Only agents speak on the infostream, and each for itself."""
        name = self._name_of(link)
        if name is None:
            return
        try:
            self._hearing.heard(link, name, packet)
        except PacketError as error:
            self._board.counters.add("messages_skipped", cause=error.cause)
        except RemoteProtocolError as error:
            self._misbehaved(link, str(error))

    def _name_of(self, link: int) -> str | None:
        if link == self._upstream.link:
            return self._board.parent
        child = self._board.children.get(link)
        if child is not None:
            return child.party.name
        attempt = self._parents.attempt_on(link)
        return None if attempt is None else attempt.name
