"""Upstream: the legs of an agent at its parent and its peers, for the wants of its children (TREE-2).

An agent opens one leg per stream at a new parent, for everything that its children want after the last message that it
has: the **main** leg. Its packets are accepted in order, like live packets. A new want gets a leg of its own, first on
behalf of the child that has it (a **relay**, catch_up.py); once that leg is live, its wants are part of the common
flow. Periodically all legs of a stream are merged into one main leg for the current wants.
"""

from typing import NamedTuple

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Cause
from penstock.tree.core.children import ChildTable
from penstock.tree.core.control import LIVE, Fetch, Fetched, Held, Position, StreamInfo, Subscribe, Unsubscribe, Want
from penstock.tree.core.coverage import Coverage, aggregated
from penstock.tree.core.environment import Environment
from penstock.tree.core.infostream import Diverged, StreamDefined
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.membership import Membership
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.streams import WHOLE_STREAM, Stream, StreamTable

MERGE_INTERVAL_NS = NS_PER_SECOND
"""Interval in which the legs of a stream are compared with the current wants."""

ChildKey = tuple[int, int]
"""A child's leg: its link and number."""


class StreamLearned(NamedTuple):
    """Event: a stream is new, has a newer term, or has other topics."""

    stream: int
    is_term_new: bool


class RelayEnded(NamedTuple):
    """Event: a leg on behalf of this child's leg brings nothing more."""

    child: ChildKey


class UpstreamLeg(msgspec.Struct):
    """A leg that this agent has at its parent, or at a peer."""

    link: int
    number: int
    stream: int
    wants: tuple[Want, ...]
    child: ChildKey | None = None
    """The child's leg on whose behalf it was opened, and which alone gets what it brings of the past."""
    is_live: bool = False
    is_fetching: bool = False
    replaces: tuple[int, ...] = ()
    """Legs that are closed when this one is live."""


class StreamLegs:
    """The legs of one stream, and the wants for which its live flow is complete.

    Several links can bring the stream (a peer's, or two parents' during a move). Each is complete by itself for
    `coverage`, so that the first copy of a message counts.
    """

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.legs: dict[tuple[int, int], UpstreamLeg] = {}
        """By link and number."""

    def own(self, link: int) -> list[UpstreamLeg]:
        """The legs on the link that are not relays."""
        return [leg for leg in self.legs.values() if leg.link == link and leg.child is None]

    def on_link(self, link: int) -> list[UpstreamLeg]:
        return [leg for leg in self.legs.values() if leg.link == link]

    def is_live(self, link: int) -> bool:
        """True if everything in `coverage` comes live on the link."""
        return all(leg.is_live or leg.replaces for leg in self.own(link))

    def relay(self, child: ChildKey) -> UpstreamLeg | None:
        return next((leg for leg in self.legs.values() if leg.child == child), None)


class Upstream:
    def __init__(
        self,
        environment: Environment,
        fanout: Fanout,
        membership: Membership,
        streams: StreamTable,
        children: ChildTable,
        outbox: Outbox,
    ) -> None:
        self._environment = environment
        self._fanout = fanout
        self._membership = membership
        self._streams = streams
        self._children = children
        self._outbox = outbox
        self._legs_by_stream: dict[int, StreamLegs] = {}
        """By stream."""
        self._leg_number = 0
        self._merged_ns = 0
        self.link: int | None = None
        """The link to the parent."""
        self.is_moving = False
        """True while another parent is about to replace the present one."""
        self.peers: set[int] = set()
        """Links to peers."""

    def use_parent(self, link: int | None) -> None:
        """From now on this is the link to the parent."""
        self.link, self.is_moving = link, False

    def begin_move(self) -> list[RelayEnded]:
        """Another link is about to replace the parent's. Relays end; they are opened again at the new parent."""
        self.is_moving = True
        relays = [leg for stream in self._streams for leg in self.legs_of(stream.number).legs.values() if leg.child]
        return self._close(relays)

    def cancel_move(self) -> None:
        self.is_moving = False

    def legs_of(self, stream: int) -> StreamLegs:
        return self._legs_by_stream.setdefault(stream, StreamLegs())

    # Streams

    def learn(self, info: StreamInfo, *, is_from_peer: bool = False) -> list[StreamLearned]:
        """A stream exists upstream. If a newer term began before the last message here, the rest is withdrawn. Within a
        known term only the parent changes the topics, because two peers could contradict each other for ever."""
        counters = self._environment.counters
        if self._membership.role == "root" or not info.number:  # a root defines streams itself; 0 is the infostream
            counters.add("messages_skipped", cause=Cause.UNEXPECTED)
            return []
        known = self._streams.get(info.number)
        if known is None:
            if self._streams.is_full:
                counters.add("requests_refused", cause="limit")
                return []
            self._streams.open(info, last=0, term=Stream(info).term_after(0))
            self._outbox.inform(_defined(info))
            return [StreamLearned(info.number, True)]
        before = known.term
        term = info.begins[-1][0] if info.begins else 0
        if term > before:
            self._streams.replace(info)
            self._begin_term(known, before)
        elif term == before and info.topics != known.info.topics and not is_from_peer:
            self._streams.set_topics(known, info.topics)
        else:
            return []
        self._outbox.inform(_defined(known.info))
        return [StreamLearned(info.number, term > before)]

    def _begin_term(self, stream: Stream, before: int) -> None:
        """A newer term than `before` has begun: messages of the older one after its end are not part of the stream."""
        end = stream.end_of(before)
        with self._fanout:
            last = self._streams.last(stream.number)
            if end is not None and end < last:
                self.take_back(stream, before, end)
            else:
                self._fanout.set_stream(stream.number, term=stream.term_after(last), last=last)

    def take_back(self, stream: Stream, term: int, kept: int) -> None:
        """Messages of an older term after `kept` are not part of the stream; the children are told."""
        last = self._streams.last(stream.number)
        self._fanout.set_stream(stream.number, term=stream.term_after(kept), last=kept)
        coverage = self.legs_of(stream.number).coverage
        for want, after in coverage.items():
            coverage[want] = min(after, kept)
        self._children.rewind(stream.number, kept)
        self._outbox.inform(Diverged(stream.number, term, kept + 1, last), self._children.links_with(stream.number))

    def advance(self, link: int, stream: Stream, last: int) -> None:
        """The parent or a peer says that everything wanted up to `last` has been sent on the link."""
        stream_legs = self.legs_of(stream.number)
        if stream_legs.own(link) and stream_legs.is_live(link) and self._membership.role != "standby":
            self._fanout.advance(stream.number, last)

    # Legs

    def open_relay(self, stream: Stream, wants: tuple[Want, ...], after: Position, child: ChildKey) -> UpstreamLeg:
        """A leg at the parent on behalf of a child; of the whole stream if there are many legs already."""
        assert self.link is not None
        is_many = len(self.legs_of(stream.number).legs) >= self._environment.config.legs_max
        return self._open(stream, self.link, (WHOLE_STREAM,) if is_many else wants, after, child=child)

    def close_relay(self, stream: int, child: ChildKey) -> bool:
        """Close the child's relay. True if there was one."""
        relay = self.legs_of(stream).relay(child)
        return relay is not None and bool(self._close([relay]))

    def join_relay(self, relay: UpstreamLeg, at: int) -> None:
        """The relay is live: from `at` on its wants are part of the common flow. The stream's position does not move,
        because the parent may still report that this agent was too slow for the other legs."""
        stream = self._streams[relay.stream]
        relay.is_live, relay.child = True, None
        coverage = self.legs_of(relay.stream).coverage
        for want in relay.wants:
            coverage.setdefault(want, at)
        self.ask_peers(stream)

    def _open(
        self,
        stream: Stream,
        link: int,
        wants: tuple[Want, ...],
        after: Position,
        *,
        child: ChildKey | None = None,
        replaces: tuple[int, ...] = (),
    ) -> UpstreamLeg:
        self._leg_number += 1
        leg = UpstreamLeg(link, self._leg_number, stream.number, wants, child, replaces=replaces)
        self.legs_of(stream.number).legs[link, leg.number] = leg
        self._outbox.send(link, Subscribe(leg.number, stream.info.name, wants, after))
        return leg

    def _close(self, legs: list[UpstreamLeg]) -> list[RelayEnded]:
        for leg in legs:
            del self.legs_of(leg.stream).legs[leg.link, leg.number]
            self._outbox.send(leg.link, Unsubscribe(leg.number))
        return _ended(legs)

    def leg(self, link: int, number: int) -> UpstreamLeg | None:
        return next(
            (leg for stream_legs in self._legs_by_stream.values() if (leg := stream_legs.legs.get((link, number)))),
            None,
        )

    def ask_all(self, link: int) -> bool:
        """Ask a new parent for everything that is wanted. True if all of it is live already."""
        for stream in self._streams:
            self._ask(stream, link)
        return self._is_complete(link)

    def _ask(self, stream: Stream, link: int, *, replaces: tuple[int, ...] = ()) -> None:
        """One leg for everything that is wanted and in the common flow; unwanted parts leave the flow. The whole stream
        may be new in the flow: it is not complete before the leg is live."""
        stream_legs = self.legs_of(stream.number)
        wants = self._wanted(stream)
        if wants:
            if stream_legs.coverage.since(wants) is not None:
                stream_legs.coverage = Coverage({want: stream_legs.coverage.since((want,)) or 0 for want in wants})
            self._open(stream, link, wants, self._position(stream), replaces=replaces)
            return
        stream_legs.coverage.clear()
        if self._takes_whole_streams and not stream_legs.legs and link not in self.peers:
            after = self._position(stream) if self._membership.role == "standby" else LIVE
            self._open(stream, link, (WHOLE_STREAM,), after)

    def _position(self, stream: Stream) -> Position:
        """The last message up to which everything in the common flow is here."""
        coverage = self.legs_of(stream.number).coverage
        last = max(self._streams.last(stream.number), min(coverage.values(), default=0))
        return Position("sequence", last, stream.term)

    @property
    def _takes_whole_streams(self) -> bool:
        """True if whole streams are asked for, whatever the children want."""
        return bool(self._environment.config.peers) or self._membership.role == "standby"

    def _wanted(self, stream: Stream) -> tuple[Want, ...]:
        """The wants that are in the common flow already."""
        coverage = self.legs_of(stream.number).coverage
        legs = self._children.legs_of(stream.number)
        wants = {want for leg in legs for want in leg.wants} | ({WHOLE_STREAM} if self._takes_whole_streams else set())
        covered = [want for want in wants if coverage.since((want,)) is not None]
        return aggregated(covered, coverage, WHOLE_STREAM, self._environment.config.legs_max)

    # Answers about main legs

    def held(self, leg: UpstreamLeg, held: Held) -> bool:
        """True if everything wanted now comes live on the link; so do the next two."""
        return self._go_on(leg, held.after, is_live=held.is_live)

    def fetched(self, leg: UpstreamLeg, fetched: Fetched) -> bool:
        leg.is_fetching = False
        return self._go_on(leg, fetched.through, is_live=fetched.is_live)

    def _go_on(self, leg: UpstreamLeg, at: int, *, is_live: bool) -> bool:
        if is_live:
            return self._set_live(self._streams[leg.stream], leg, at)
        leg.is_fetching = True
        self._outbox.send(leg.link, Fetch(leg.number, self._environment.config.fetch_bytes_max))
        return False

    def _set_live(self, stream: Stream, leg: UpstreamLeg, at: int) -> bool:
        stream_legs = self.legs_of(stream.number)
        leg.is_live = True
        self._close([old for number in leg.replaces if (old := stream_legs.legs.get((leg.link, number)))])
        leg.replaces = ()
        if stream_legs.coverage.since(leg.wants) is None:
            stream_legs.coverage = Coverage(dict.fromkeys(leg.wants, at))
        self.ask_peers(stream)
        return self._is_complete(leg.link)

    def _is_complete(self, link: int) -> bool:
        return all(self.legs_of(stream.number).is_live(link) for stream in self._streams)

    def absorb(self, leg: UpstreamLeg, packets: bytes) -> None:
        """Missed messages, in order: accepted like live packets."""
        self._fanout.absorb(packets, leg.link)

    def lagging(self, leg: UpstreamLeg) -> list[RelayEnded]:
        """The parent found this agent too slow: ask again, with one leg, for what was missed and what follows."""
        stream = self._streams[leg.stream]
        ended = self._close(self.legs_of(leg.stream).on_link(leg.link))
        if leg.link in self.peers:
            self.ask_peers(stream)
        else:
            self._ask(stream, leg.link)
        return ended

    def refused(self, leg: UpstreamLeg) -> None:
        self.legs_of(leg.stream).legs.pop((leg.link, leg.number), None)

    def drop_link(self, link: int) -> list[RelayEnded]:
        """The link is closed."""
        ended: list[RelayEnded] = []
        for stream in self._streams:
            stream_legs = self.legs_of(stream.number)
            legs = stream_legs.on_link(link)
            for leg in legs:
                del stream_legs.legs[leg.link, leg.number]
            ended += _ended(legs)
        return ended

    # Peers

    def add_peer(self, link: int) -> None:
        self.peers.add(link)
        for stream in self._streams:
            self.ask_peers(stream)

    def remove_peer(self, link: int) -> list[RelayEnded]:
        self.peers.discard(link)
        return self.drop_link(link)

    def ask_peers(self, stream: Stream) -> None:
        """Peers bring whole streams, and only to agents that have them whole: the first copy must be all there is."""
        stream_legs = self.legs_of(stream.number)
        if WHOLE_STREAM in stream_legs.coverage:
            for link in self.peers:
                if not stream_legs.own(link):
                    self._open(stream, link, (WHOLE_STREAM,), self._position(stream))

    # Time

    def tick(self) -> None:
        """Close unused legs, and merge the legs of each stream into one."""
        if self._environment.now_ns - self._merged_ns < MERGE_INTERVAL_NS:
            return
        self._merged_ns = self._environment.now_ns
        if self.link is not None and not self.is_moving:
            for stream in self._streams:
                self._merge(stream, self.link)

    def _merge(self, stream: Stream, link: int) -> None:
        stream_legs = self.legs_of(stream.number)
        own = stream_legs.own(link)
        if not own or not all(leg.is_live for leg in own):
            return
        wanted = self._wanted(stream)
        if not wanted:
            self._close(own)
            stream_legs.coverage.clear()
        elif len(own) > 1 or set(wanted) != set(own[0].wants):
            self._ask(stream, link, replaces=tuple(leg.number for leg in own))


def _ended(legs: list[UpstreamLeg]) -> list[RelayEnded]:
    return [RelayEnded(leg.child) for leg in legs if leg.child is not None]


def _defined(info: StreamInfo) -> StreamDefined:
    term, after = info.begins[-1] if info.begins else (0, 0)
    return StreamDefined(info.number, info.name, info.topics, term, after)
