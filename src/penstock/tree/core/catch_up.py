"""How a child's leg gets from where it is to live: portions, each asked for by the child (TREE-5).

A portion comes out of the agent's history if that is complete for the leg; at the root, else, out of the stream's
journal; elsewhere through a leg of the agent's own at its parent, on the child's behalf (a relay). Which it is, is
decided anew for each portion. The one that reaches the live end makes the leg live at exactly that place of the order.
Whose turn it is, is in portion_scheduler.py.
"""

from penstock.tree.core.board import Board, ChildLeg, Stream
from penstock.tree.core.control import Fetch, Fetched, Held, Position, Refused
from penstock.tree.core.events import JournalRead, ReadJournal
from penstock.tree.core.infostream import Diverged, Gone
from penstock.tree.core.kernel._frame import count_packets, encode_block, split_packets
from penstock.tree.core.legs import UpstreamLeg, since
from penstock.tree.core.portion_scheduler import Portions
from penstock.tree.core.upstream import Upstream
from penstock.wire import decode

SIZE_MAX = 2**31
PORTIONS_SIZE_MAX = 2 * 1024 * 1024
"""Bytes of a link's portions that are on their way, or wait to be sent with what else was said; of one, more."""
READS_MAX = 8
"""Of the root's journals at a time."""


class CatchUp:
    def __init__(self, board: Board, upstream: Upstream) -> None:
        self._board = board
        self._upstream = upstream
        self._reading: dict[int, ChildLeg] = {}
        """By request."""
        self._request = 0
        self._portions = Portions(board, self._is_busy, self._serve_portion)
        self.take_turn = self._portions.take_turn
        self.deadline_ns = self._portions.deadline_ns
        upstream.on_relay_gone = self._relay_is_gone

    # Where a leg begins

    def begin(self, stream: Stream, leg: ChildLeg) -> None:
        """The leg is open, not live. Hold it, now or when it is known where it begins."""
        position = leg.begin
        if position.begin == "sequence":
            self._begin_after(stream, leg, self._judged(stream, leg, position))
        elif self._board.role == "root":
            if position.begin == "live":
                self.hold(stream, leg, self._board.last(stream.number))
            else:
                self._read_journal(stream, leg, time_ns=position.at if position.begin == "time" else None)
        elif position.begin == "live" and (begun := since(stream.feed.joined, leg.wants)) is not None:
            self.hold(stream, leg, max(begun, self._board.last(stream.number)))
        else:
            self._relay(stream, leg)

    def _begin_after(self, stream: Stream, leg: ChildLeg, after: int) -> None:
        """Nothing of a stream is beyond the root's last. Who is behind a position cannot tell whether it is: then the
        parent says where the leg begins."""
        last = self._board.last(stream.number)
        if self._board.role == "root" or after <= last:
            self.hold(stream, leg, min(after, last))
        else:
            self._relay(stream, leg)

    def hold(self, stream: Stream, leg: ChildLeg, after: int) -> None:
        """The leg's messages are those after this sequence. If that is where the stream is, it is live at once."""
        leg.through, leg.is_held = after, True
        board = self._board
        with board.fanout:
            last = board.last(stream.number)
            if after >= last and self._is_complete(stream, leg, after):
                portion = board.fanout.fetch(leg.link, leg.number, after, SIZE_MAX)
                leg.is_live = portion is not None and portion.is_live
            granted = leg.wants if leg.wants != leg.asked else ()
            board.say(leg.link, Held(leg.number, stream.number, after, stream.term_after(after), leg.is_live, granted))
        if leg.is_live:
            leg.fetch_bytes = 0
        self.serve(stream, leg)

    def _judged(self, stream: Stream, leg: ChildLeg, position: Position) -> int:
        """The sequence itself; or, if a newer term began before it, where that did: the child is told so."""
        end = stream.end_of(position.term) if position.term else None
        if end is None or position.at <= end:
            return position.at
        self._board.inform(Diverged(stream.number, position.term, end + 1, position.at), [leg.link])
        return end

    # Portions

    def fetch(self, stream: Stream, leg: ChildLeg, bytes_max: int) -> None:
        """The child asks for a portion; it comes when the leg is held. While one is on its way nothing more happens."""
        if leg.is_live or leg.fetch_bytes:
            return
        leg.fetch_bytes = max(1, min(bytes_max, self._board.config.fetch_bytes_max))
        self.serve(stream, leg)

    def serve(self, stream: Stream, leg: ChildLeg) -> None:
        """Go on with the portion that the child waits for, or with finding out where the leg begins."""
        if not leg.is_held:
            if self._board.role != "root" and stream.feed.relay((leg.link, leg.number)) is None:
                self.begin(stream, leg)
            return
        if leg.fetch_bytes:
            self._portions.ask(leg)

    def _is_busy(self, leg: ChildLeg) -> bool:
        """Whether its portion has to wait for others."""
        if len(self._reading) >= READS_MAX:
            return True
        others = self._board.children[leg.link].legs.values()
        size = sum(each.fetch_bytes for each in others if each.is_coming) + self._board.fanout.link(leg.link).words
        return size > 0 and size + leg.fetch_bytes > PORTIONS_SIZE_MAX

    def _serve_portion(self, leg: ChildLeg) -> None:
        stream = self._board.streams[leg.stream]
        if leg.is_live or not leg.fetch_bytes:  # it has come another way meanwhile
            return
        if self._is_complete(stream, leg, leg.through) and self._from_history(leg):
            return
        if self._board.role == "root":
            self._read_journal(stream, leg)
        else:
            self._relay(stream, leg)

    def _is_complete(self, stream: Stream, leg: ChildLeg, after: int) -> bool:
        """Whether everything that the leg wants after this sequence came, or comes, live to this agent."""
        if self._board.role == "root":
            return True
        begun = since(stream.feed.joined, leg.wants)
        return begun is not None and begun <= after

    def _from_history(self, leg: ChildLeg) -> bool:
        board = self._board
        with board.fanout:
            portion = board.fanout.fetch(leg.link, leg.number, leg.through, leg.fetch_bytes)
            if portion is None:
                return False
            self._deliver(leg, portion.packets, max(portion.through, leg.through), portion.is_live)
        return True

    def _deliver(self, leg: ChildLeg, packets: bytes, through: int, is_live: bool) -> None:
        leg.through, leg.is_live, leg.fetch_bytes = through, is_live, 0
        self._came(leg)
        self._give(leg, packets)
        self._board.say(leg.link, Fetched(leg.number, through, is_live))

    def _came(self, leg: ChildLeg) -> None:
        """Its portion, or nothing more of it."""
        leg.is_coming = False
        self._portions.was_served(leg.link)

    def _give(self, leg: ChildLeg, packets: bytes) -> None:
        if packets:
            self._board.ledger.gave(leg.link, count_packets(packets))
            self._board.send(leg.link, encode_block(packets, leg=leg.number))

    # The root's journal

    def _read_journal(self, stream: Stream, leg: ChildLeg, *, time_ns: int | None = None) -> None:
        self._request += 1
        self._reading[self._request] = leg
        leg.is_coming = leg.is_held
        size = leg.fetch_bytes if leg.is_held else 1
        after = leg.through if leg.is_held else 0
        self._board.out.append(ReadJournal(self._request, stream.number, after, time_ns, size))

    def journal_read(self, event: JournalRead) -> None:
        leg = self._reading.pop(event.request, None)
        if leg is None or self._leg(leg.link, leg.number) is not leg:
            return
        stream = self._board.streams[leg.stream]
        self._came(leg)
        if event.is_failed:
            again = self.serve if leg.is_held else self.begin
            again(stream, leg)
            return
        if not leg.is_held:
            self.hold(stream, leg, event.after)
            return
        if event.after > leg.through:
            self._board.inform(Gone(leg.stream, leg.number, leg.through + 1, event.after), [leg.link])
        leg.through = max(leg.through, event.after)
        last = self._board.last(leg.stream)
        packets = event.packets if event.through <= last else _up_to(event.packets, last)
        if packets:
            wanted = self._board.fanout.select(leg.link, leg.number, packets, SIZE_MAX)
            self._deliver(leg, wanted.packets, max(min(event.through, last), leg.through), False)
        elif not self._from_history(leg):
            self._deliver(leg, b"", leg.through, False)

    # Relays

    def _relay(self, stream: Stream, leg: ChildLeg) -> None:
        """Let the parent bring it, as soon as there is one that brings everything else."""
        uplink = self._upstream.link
        if uplink is None or not stream.feed.is_live(uplink) or self._upstream.is_moving:
            return
        relay = stream.feed.relay((leg.link, leg.number))
        if relay is not None:
            self._fetch_on(relay, leg)
            return
        begin = Position("sequence", leg.through, stream.term) if leg.is_held else leg.begin
        whole = len(stream.feed.legs) >= self._board.config.legs_max
        wants = (stream.whole,) if whole else leg.wants
        relay = self._upstream.open_leg(stream, uplink, wants, begin, child=(leg.link, leg.number))
        self._fetch_on(relay, leg)

    def _fetch_on(self, relay: UpstreamLeg, leg: ChildLeg) -> None:
        if leg.is_held and leg.fetch_bytes and not relay.is_fetching:
            relay.is_fetching = leg.is_coming = True
            self._board.say(relay.link, Fetch(relay.number, leg.fetch_bytes))

    def relay_held(self, relay: UpstreamLeg, held: Held) -> None:
        leg = self._child_of(relay)
        if leg is None:
            return
        stream = self._board.streams[relay.stream]
        if held.is_live:
            self._join(stream, relay, held.after)
        if not leg.is_held:
            self.hold(stream, leg, held.after)
        if held.is_live and leg.fetch_bytes:
            self.serve(stream, leg)

    def relay_block(self, relay: UpstreamLeg, packets: bytes) -> None:
        leg = self._child_of(relay)
        if leg is not None:
            wanted = self._board.fanout.select(leg.link, leg.number, packets, SIZE_MAX)
            self._give(leg, wanted.packets)

    def relay_fetched(self, relay: UpstreamLeg, fetched: Fetched) -> None:
        relay.is_fetching = False
        leg = self._child_of(relay)
        stream = self._board.streams[relay.stream]
        if fetched.is_live:
            self._join(stream, relay, fetched.through)
        if leg is None or not leg.fetch_bytes:
            return
        leg.through = max(leg.through, fetched.through)
        if not fetched.is_live or not self._from_history(leg):
            self._deliver(leg, b"", leg.through, False)

    def relay_gone(self, relay: UpstreamLeg, gone: Gone) -> None:
        leg = self._child_of(relay)
        if leg is not None:
            self._board.inform(Gone(gone.stream, leg.number, gone.first, gone.last), [leg.link])

    def relay_refused(self, relay: UpstreamLeg, refused: Refused) -> None:
        leg = self._child_of(relay)
        if leg is not None:
            self._board.fanout.close_leg(leg.link, leg.number)
            self._portions.drop(leg)
            del self._board.children[leg.link].legs[leg.number]
            self._board.say(leg.link, Refused(refused.code, refused.reason, leg.number))

    def _join(self, stream: Stream, relay: UpstreamLeg, at: int) -> None:
        """The relay is live: from here on its wants are in the flow that everybody is fed from. That this agent has
        everything else up to there is not said: it may still be told that it was too slow for it."""
        self._relay_is_gone(relay)
        relay.is_live, relay.child = True, None
        for want in relay.wants:
            stream.feed.joined.setdefault(want, at)
        self._upstream.ask_peers(stream)

    def _relay_is_gone(self, relay: UpstreamLeg) -> None:
        leg = self._child_of(relay)
        if leg is not None:
            self._came(leg)

    def _child_of(self, relay: UpstreamLeg) -> ChildLeg | None:
        return None if relay.child is None else self._leg(*relay.child)

    def _leg(self, link: int, number: int) -> ChildLeg | None:
        child = self._board.children.get(link)
        return None if child is None else child.legs.get(number)

    def serve_waiting(self) -> None:
        """There is a parent, or its link brings everything that was missed: go on with what waits for that."""
        for child in list(self._board.children.values()):
            for leg in list(child.legs.values()):
                self.serve(self._board.streams[leg.stream], leg)

    def abandon(self, leg: ChildLeg) -> None:
        """A child's leg has ended, or wants something else: what was asked for on its behalf is not wanted any more."""
        self._portions.drop(leg)
        stream = self._board.streams.get(leg.stream)
        relay = None if stream is None else stream.feed.relay((leg.link, leg.number))
        if relay is not None:
            self._upstream.close_leg(relay)


def _up_to(packets: bytes, last: int) -> bytes:
    """A journal may be ahead of what was distributed; what is there is nobody's yet."""
    return b"".join(packet for packet in split_packets(packets) if decode(packet).sequence <= last)
