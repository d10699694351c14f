"""What an agent asks its parent for: of each stream, what its children want together (TREE-2).

Of a stream that it has already, an agent asks a new parent for everything that its children want by one leg, after the
last message that it has: the **main** leg. What comes of it is taken in order, as live packets are. A want that is new
comes by a leg of its own, first on behalf of the child that has it (catch_up.py), and is in the common flow when it is
live. From time to time all legs of a stream are replaced by one main leg for what is still wanted.
"""

from collections.abc import Callable

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Cause
from penstock.tree.core.board import Board, Stream
from penstock.tree.core.control import LIVE, Fetch, Fetched, Held, Position, StreamInfo, Subscribe, Unsubscribe, Want
from penstock.tree.core.infostream import Diverged, StreamDefined
from penstock.tree.core.legs import UpstreamLeg, aggregated, since
from penstock.tree.core.wants import Joined

TIDY_INTERVAL_NS = NS_PER_SECOND
"""How often it is looked whether a stream's legs are still what is wanted."""


class Upstream:
    def __init__(self, board: Board) -> None:
        self._board = board
        self.link: int | None = None
        """To the parent."""
        self.is_moving = False
        """Whether another parent is about to take its place."""
        self.peers: set[int] = set()
        self._number = 0
        self.tidy_ns = 0
        self.on_learned: Callable[[int, bool], None] = lambda stream, is_term_new: None
        self.on_live: Callable[[int], None] = lambda link: None
        """Told when a link brings everything that is wanted."""
        self.on_relay_gone: Callable[[UpstreamLeg], None] = lambda leg: None
        """Told of legs on behalf of a child that bring nothing more."""

    # Streams

    def learn(self, info: StreamInfo, *, is_from_peer: bool = False) -> None:
        """A stream there is above. If a newer term began before what is here of it, that is no part of it. Which topics
        it has in a term that is known is the parent's to say: two peers would go on telling each other."""
        board = self._board
        if board.role == "root" or not info.number:  # it says so itself; and 0 is the infostream
            board.counters.add("messages_skipped", cause=Cause.UNEXPECTED)
            return
        known = board.streams.get(info.number)
        if known is None:
            if len(board.streams) >= board.config.streams_max:
                board.counters.add("requests_refused", cause="limit")
                return
            stream = Stream(info)
            board.fanout.open_stream(info.number, term=stream.term_after(0), last=0)
            board.streams[info.number] = stream
            board.numbers[info.name] = info.number
            board.ledger.begun[info.number] = (0, 0)
            board.inform(_defined(info))
            self.on_learned(info.number, True)
            return
        before = known.term
        term = info.begins[-1][0] if info.begins else 0
        if term > before:
            known.info = info
            self._begin_term(known, before)
        elif term == before and info.topics != known.info.topics and not is_from_peer:
            known.info = msgspec.structs.replace(known.info, topics=info.topics)
        else:
            return
        board.inform(_defined(known.info))
        self.on_learned(info.number, term > before)

    def _begin_term(self, stream: Stream, before: int) -> None:
        """A newer term than `before` has begun: what came of the older one after its end is not part of the stream."""
        board = self._board
        end = stream.end_of(before)
        with board.fanout:
            last = board.last(stream.number)
            if end is not None and end < last:
                self.take_back(stream, before, end)
            else:
                board.fanout.set_stream(stream.number, term=stream.term_after(last), last=last)

    def take_back(self, stream: Stream, term: int, kept: int) -> None:
        """What came of an older term after this sequence is no part of the stream: those below are told so."""
        board = self._board
        last = board.last(stream.number)
        board.fanout.set_stream(stream.number, term=stream.term_after(kept), last=kept)
        for want, after in stream.feed.joined.items():
            stream.feed.joined[want] = min(after, kept)
        links = []
        for child in board.children.values():
            legs = [leg for leg in child.legs.values() if leg.stream == stream.number]
            for leg in legs:
                leg.through = min(leg.through, kept)
            links += [child.link] if legs else []
        board.inform(Diverged(stream.number, term, kept + 1, last), links)

    # Legs

    def open_leg(
        self,
        stream: Stream,
        link: int,
        wants: tuple[Want, ...],
        after: Position,
        *,
        child: tuple[int, int] | None = None,
        replaces: tuple[int, ...] = (),
    ) -> UpstreamLeg:
        self._number += 1
        leg = UpstreamLeg(link, self._number, stream.number, wants, child, replaces=replaces)
        stream.feed.legs[link, leg.number] = leg
        self._board.say(link, Subscribe(leg.number, stream.info.name, wants, after))
        return leg

    def close_leg(self, leg: UpstreamLeg) -> None:
        stream = self._board.streams[leg.stream]
        if stream.feed.legs.pop((leg.link, leg.number), None) is not None:
            self._board.say(leg.link, Unsubscribe(leg.number))
            self.on_relay_gone(leg)

    def leg(self, link: int, number: int) -> UpstreamLeg | None:
        for stream in self._board.streams.values():
            found = stream.feed.legs.get((link, number))
            if found is not None:
                return found
        return None

    def ask_all(self, link: int) -> None:
        """Ask a new parent, or a peer, for what there is to have."""
        for stream in self._board.streams.values():
            self._ask(stream, link)
        self.note_live(link)

    def _ask(self, stream: Stream, link: int, *, replaces: tuple[int, ...] = ()) -> None:
        """One leg for all that is wanted and in the common flow. What nobody wants is in it no longer. The whole stream
        may be new in it: it is not complete before it comes live."""
        feed = stream.feed
        wants = self._wanted(stream)
        if wants:
            if since(feed.joined, wants) is not None:
                feed.joined = Joined({want: since(feed.joined, (want,)) or 0 for want in wants})
            self.open_leg(stream, link, wants, self._position(stream), replaces=replaces)
            return
        feed.joined.clear()
        if self._is_whole and not feed.legs and link not in self.peers:
            after = self._position(stream) if self._board.role == "standby" else LIVE
            self.open_leg(stream, link, (stream.whole,), after)

    def _position(self, stream: Stream) -> Position:
        """Up to where everything that is joined is here."""
        last = max(self._board.last(stream.number), min(stream.feed.joined.values(), default=0))
        return Position("sequence", last, stream.term)

    def ask_peers(self, stream: Stream) -> None:
        """Peers bring whole streams, and only to those who have them whole: what comes first must be all there is."""
        if stream.whole in stream.feed.joined:
            for link in self.peers:
                if not stream.feed.own(link):
                    self.open_leg(stream, link, (stream.whole,), self._position(stream))

    @property
    def _is_whole(self) -> bool:
        """Whether whole streams are asked for, whatever the children want."""
        return bool(self._board.config.peers) or self._board.role == "standby"

    def _wanted(self, stream: Stream) -> tuple[Want, ...]:
        """What is wanted, of that which is in the common flow already."""
        joined = stream.feed.joined
        children = self._board.children.values()
        legs = [leg for child in children for leg in child.legs.values() if leg.stream == stream.number]
        wants = {want for leg in legs for want in leg.wants} | ({stream.whole} if self._is_whole else set())
        covered = [want for want in wants if since(joined, (want,)) is not None]
        return aggregated(covered, joined, stream.whole, self._board.config.legs_max)

    def held(self, leg: UpstreamLeg, held: Held) -> None:
        """Of a main leg."""
        stream = self._board.streams[leg.stream]
        if held.is_live:
            self._live(stream, leg, held.after)
        else:
            self._fetch(leg)

    def fetched(self, leg: UpstreamLeg, fetched: Fetched) -> None:
        leg.is_fetching = False
        stream = self._board.streams[leg.stream]
        if fetched.is_live:
            self._live(stream, leg, fetched.through)
        else:
            self._fetch(leg)

    def block(self, leg: UpstreamLeg, packets: bytes) -> None:
        """What was missed, in order: as if it had come live."""
        self._board.fanout.absorb(packets, leg.link)
        self._board.refilled = True

    def _fetch(self, leg: UpstreamLeg) -> None:
        leg.is_fetching = True
        self._board.say(leg.link, Fetch(leg.number, self._board.config.fetch_bytes_max))

    def _live(self, stream: Stream, leg: UpstreamLeg, at: int) -> None:
        leg.is_live = True
        for number in leg.replaces:
            old = stream.feed.legs.get((leg.link, number))
            if old is not None:
                self.close_leg(old)
        leg.replaces = ()
        if since(stream.feed.joined, leg.wants) is None:
            stream.feed.joined = Joined(dict.fromkeys(leg.wants, at))
        self.ask_peers(stream)
        self.note_live(leg.link)

    def note_live(self, link: int) -> None:
        if all(stream.feed.is_live(link) for stream in self._board.streams.values()):
            self.on_live(link)

    def lagging(self, leg: UpstreamLeg) -> None:
        """The parent found this agent too slow: ask anew, by one leg, for what is missed and what comes."""
        stream = self._board.streams[leg.stream]
        for each in [each for each in stream.feed.legs.values() if each.link == leg.link]:
            self.close_leg(each)
        if leg.link in self.peers:
            self.ask_peers(stream)
        else:
            self._ask(stream, leg.link)

    def refused(self, leg: UpstreamLeg) -> None:
        stream = self._board.streams[leg.stream]
        stream.feed.legs.pop((leg.link, leg.number), None)

    def drop_link(self, link: int) -> None:
        for stream in self._board.streams.values():
            for leg in stream.feed.drop_link(link):
                self.on_relay_gone(leg)

    def cancel_relays(self) -> None:
        """What is on behalf of children stops; it goes on with another parent."""
        for stream in self._board.streams.values():
            for leg in [each for each in stream.feed.legs.values() if each.child is not None]:
                self.close_leg(leg)

    def tidy(self) -> None:
        """Give up what nobody wants any more, and make one leg of many."""
        link = self.link
        if link is None or self.is_moving:
            return
        for stream in self._board.streams.values():
            self._tidy(stream, link)

    def _tidy(self, stream: Stream, link: int) -> None:
        feed = stream.feed
        own = feed.own(link)
        if not own or not all(leg.is_live for leg in own):
            return
        wanted = self._wanted(stream)
        if not wanted:
            for leg in own:
                self.close_leg(leg)
            feed.joined.clear()
        elif len(own) > 1 or set(wanted) != set(own[0].wants):
            self._ask(stream, link, replaces=tuple(leg.number for leg in own))


def _defined(info: StreamInfo) -> StreamDefined:
    term, after = info.begins[-1] if info.begins else (0, 0)
    return StreamDefined(info.number, info.name, info.topics, term, after)
