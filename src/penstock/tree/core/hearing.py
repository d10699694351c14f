"""What an agent does on each kind of infostream message, from its parent, a peer, or a child (TREE-3)."""

from penstock.base.errors import RemoteProtocolError
from penstock.tree.core.attempts import Attempt
from penstock.tree.core.board import Board
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.children import Children
from penstock.tree.core.control import TERMS_MAX, StreamInfo
from penstock.tree.core.events import Informed
from penstock.tree.core.infostream import (
    Alternates,
    Diverged,
    Gone,
    Info,
    Lagging,
    MoveTo,
    Neighbour,
    ParentFound,
    ParentLost,
    Path,
    ReturnTo,
    Root,
    Siblings,
    Stopping,
    StreamDefined,
    Through,
    decode_info,
    id_of,
)
from penstock.tree.core.kernel.notices import NewerTerm
from penstock.tree.core.parents import Parents
from penstock.tree.core.root.sequencer import Rooting
from penstock.tree.core.upstream import Upstream


class Hearing:
    def __init__(
        self,
        board: Board,
        upstream: Upstream,
        catch_up: CatchUp,
        children: Children,
        parents: Parents,
        rooting: Rooting,
    ) -> None:
        self._board = board
        self._upstream = upstream
        self._catch_up = catch_up
        self._children = children
        self._parents = parents
        self._rooting = rooting

    def heard(self, link: int, name: str, packet: bytes) -> None:
        """PacketError if it says nothing, RemoteProtocolError if somebody speaks in another's name."""
        heard = decode_info(packet)
        if heard.publisher_id != id_of(name):
            raise RemoteProtocolError(f"{name} speaks on the infostream of another")
        self._board.out.append(Informed("heard", link, name, heard.info))
        attempt = self._parents.attempt_on(link)
        if link == self._upstream.link:
            if not self._of_stream(link, heard.info):
                self._of_parent(heard.info)
        elif attempt is not None:
            if not self._of_stream(link, heard.info):
                self._of_attempt(attempt, heard.info)
        elif link in self._upstream.peers:
            if self._board.role != "root":  # what streams are and have is the root's to say
                self._of_stream(link, heard.info)
        elif link in self._board.children:
            self._children.heard(self._board.children[link], heard.info)

    def _of_stream(self, link: int, info: Info) -> bool:
        """What is about a stream is so on every link that brings streams."""
        board = self._board
        match info:
            case Through():
                stream = board.streams.get(info.stream)
                if (
                    stream is not None
                    and stream.feed.own(link)
                    and stream.feed.is_live(link)
                    and info.term == stream.term
                ):
                    board.advance(info.stream, info.last)
            case Lagging():
                leg = self._upstream.leg(link, info.leg)
                if leg is not None and leg.child is None:
                    self._upstream.lagging(leg)
            case Gone():
                leg = self._upstream.leg(link, info.leg)
                if leg is not None and leg.child is not None:
                    self._catch_up.relay_gone(leg, info)
                elif leg is not None:
                    self._gone(info)
            case Diverged():
                self._diverged(info)
            case StreamDefined():
                self._defined(info, is_from_peer=link in self._upstream.peers)
            case _:
                return False
        return True

    def _gone(self, info: Gone) -> None:
        """What is missing here for good is missing for everybody below."""
        board = self._board
        if board.role == "standby":
            self._rooting.replica.gone(info.stream, info.first, info.last)
        links = [
            child.link
            for child in board.children.values()
            if any(leg.stream == info.stream for leg in child.legs.values())
        ]
        board.inform(Gone(info.stream, 0, info.first, info.last), links)

    def _diverged(self, info: Diverged) -> None:
        """Who knows where the term ended has taken back what is beyond already, when it learned of that."""
        stream = self._board.streams.get(info.stream)
        if stream is None or not info.first or self._board.last(info.stream) < info.first:
            return
        end = stream.end_of(info.term)
        if end is None or end >= info.first:
            self._upstream.take_back(stream, info.term, info.first - 1)

    def _defined(self, info: StreamDefined, *, is_from_peer: bool = False) -> None:
        known = self._board.streams.get(info.number)
        begins = known.info.begins if known is not None else ()
        if not info.topics or (begins and info.term < begins[-1][0]):
            return
        if not begins or info.term > begins[-1][0]:
            begins = (*(each for each in begins if each[1] < info.after), (info.term, info.after))[-TERMS_MAX:]
        stream = StreamInfo(info.number, info.name, info.topics, begins)
        self._upstream.learn(stream, is_from_peer=is_from_peer)

    def newer_term(self, notice: NewerTerm) -> None:
        """Packets of a term that was not announced: it begins with them."""
        stream = self._board.streams.get(notice.stream)
        if stream is not None and notice.term > stream.term:
            info = stream.info
            self._defined(StreamDefined(info.number, info.name, info.topics, notice.term, max(notice.sequence, 1) - 1))
        if stream is not None:
            last = self._board.last(stream.number)
            self._board.fanout.set_stream(stream.number, term=notice.term, last=last)
        self._board.fanout.resume(notice.link)
        self._board.refilled = True

    def _of_parent(self, info: Info) -> None:
        board, parents = self._board, self._parents
        match info:
            case Path() | ParentFound():
                parents.set_path(info.path, is_rooted=info.is_rooted, term=info.term)
            case ParentLost():
                parents.parent_is_lost()
            case Siblings():
                self._children.set_siblings(info.agents)
            case Alternates():
                parents.alternates = info.agents
            case MoveTo():
                if board.config.on.move == "obey":
                    parents.move(info.place, Neighbour(board.parent, parents.place))
            case ReturnTo():
                if board.config.on.send_back == "obey" and parents.home is not None:
                    parents.move(parents.home.place, None)
            case Stopping():
                parents.parent_stops()
            case Root():
                self._root(info)
            case _:
                pass

    def _of_attempt(self, attempt: Attempt, info: Info) -> None:
        if isinstance(info, Path | ParentFound):
            self._parents.path_of_attempt(attempt, info.path, info.is_rooted, info.term)

    def _root(self, info: Root) -> None:
        board = self._board
        if info.term >= board.term and (info.root, info.standby) != (board.root_place, board.standby_place):
            board.root_place, board.standby_place = info.root, info.standby
            board.term = info.term
            board.inform(info)
