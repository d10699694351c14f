"""CatchUp: brings a child's leg from its position to live, in portions that the child fetches (TREE-5).

A portion comes from the agent's history if the history is complete for the leg; otherwise, at the root, from the
stream's journal, and elsewhere through a leg at the parent on the child's behalf (a relay). The source is chosen anew
for each portion. The portion that reaches the end of the stream makes the leg live at exactly that sequence.
"""

from penstock.tree.core.children import ChildLeg, ChildTable
from penstock.tree.core.control import Fetch, Fetched, Held, Position, Refused
from penstock.tree.core.environment import Environment
from penstock.tree.core.events import JournalRead, ReadJournal
from penstock.tree.core.infostream import Diverged, Gone, Lagging
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.kernel._frame import count_packets, encode_block, split_packets
from penstock.tree.core.membership import Membership
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.portion_scheduler import PORTIONS_PER_TURN, PortionScheduler
from penstock.tree.core.streams import Stream, StreamTable
from penstock.tree.core.upstream import ChildKey, Upstream, UpstreamLeg
from penstock.wire import decode

SIZE_MAX = 2**31
PORTIONS_SIZE_MAX = 2 * 1024 * 1024
"""Bytes of a link's portions that are requested, or wait to be sent with other control frames; a single portion may be
larger."""
READS_MAX = 8
"""Concurrent reads of the root's journals."""


class CatchUp:
    def __init__(
        self,
        environment: Environment,
        fanout: Fanout,
        membership: Membership,
        streams: StreamTable,
        children: ChildTable,
        outbox: Outbox,
        upstream: Upstream,
    ) -> None:
        self._environment = environment
        self._fanout = fanout
        self._membership = membership
        self._streams = streams
        self._children = children
        self._outbox = outbox
        self._upstream = upstream
        self._reading: dict[int, ChildLeg] = {}
        """By request."""
        self._request = 0
        self._scheduler = PortionScheduler(environment, self._is_busy)

    def take_turn(self) -> None:
        """Send, or request, the next few portions."""
        self._scheduler.begin_turn()
        for _ in range(PORTIONS_PER_TURN):
            leg = self._scheduler.next()
            if leg is None:
                return
            self._serve_portion(leg)

    def deadline_ns(self) -> int | None:
        return self._scheduler.deadline_ns()

    # Where a leg begins

    def begin(self, leg: ChildLeg) -> None:
        """The leg is open, not live. Hold it now, or once its first sequence is known."""
        stream, position = self._streams[leg.stream], leg.begin
        if position.begin == "sequence":
            self._begin_after(stream, leg, self._valid_sequence(stream, leg, position))
        elif self._membership.role == "root":
            if position.begin == "live":
                self._hold(stream, leg, self._streams.last(stream.number))
            else:
                self._read_journal(leg, time_ns=position.at if position.begin == "time" else None)
        elif position.begin == "live" and (begun := self._complete_since(leg)) is not None:
            self._hold(stream, leg, max(begun, self._streams.last(stream.number)))
        else:
            self._relay(stream, leg)

    def _begin_after(self, stream: Stream, leg: ChildLeg, after: int) -> None:
        """The stream has no messages beyond the root's last one. An agent that is behind the position cannot tell
        whether the position exists: its parent decides."""
        last = self._streams.last(stream.number)
        if self._membership.role == "root" or after <= last:
            self._hold(stream, leg, min(after, last))
        else:
            self._relay(stream, leg)

    def _hold(self, stream: Stream, leg: ChildLeg, after: int) -> None:
        """The leg begins after this sequence. If that is the end of the stream, it is live at once."""
        leg.through, leg.is_held = after, True
        with self._fanout:
            last = self._streams.last(stream.number)
            if after >= last and self._is_complete(leg, after) and not self._is_interrupted(leg):
                portion = self._fanout.fetch(leg.link, leg.number, after, SIZE_MAX)
                leg.is_live = portion is not None and portion.is_live
            granted = leg.wants if leg.wants != leg.asked else ()
            term = stream.term_after(after)
            self._outbox.send(leg.link, Held(leg.number, stream.number, after, term, leg.is_live, granted))
        if leg.is_live:
            leg.fetch_bytes = 0
        self.serve(leg)

    def _valid_sequence(self, stream: Stream, leg: ChildLeg, position: Position) -> int:
        """The sequence itself; or the end of its term, if a newer term began before it: the child is told."""
        end = stream.end_of(position.term) if position.term else None
        if end is None or position.at <= end:
            return position.at
        self._outbox.inform(Diverged(stream.number, position.term, end + 1, position.at), [leg.link])
        return end

    # Portions

    def fetch(self, leg: ChildLeg, bytes_max: int) -> None:
        """The child requests a portion, which is sent once the leg is held. Further requests are ignored until then."""
        if leg.is_live or leg.fetch_bytes:
            return
        leg.fetch_bytes = max(1, min(bytes_max, self._environment.config.fetch_bytes_max))
        self.serve(leg)

    def serve(self, leg: ChildLeg) -> None:
        """Continue with the requested portion, or with finding the begin of the leg."""
        if leg.is_held:
            if leg.fetch_bytes:
                self._scheduler.add(leg)
        elif self._membership.role != "root" and self._relay_for(leg) is None:
            self.begin(leg)

    def serve_all(self) -> None:
        """A parent is connected, or its link has delivered everything that was missed: continue with waiting legs."""
        for child in self._children:
            for leg in list(child.legs.values()):
                self.serve(leg)

    def abandon(self, leg: ChildLeg) -> None:
        """The child's leg has ended or changed: drop what was requested for it."""
        self._scheduler.remove(leg)
        key = (leg.link, leg.number)
        if self._streams.get(leg.stream) is not None and self._upstream.close_relay(leg.stream, key):
            self.relay_ended(key)

    def left_live(self, leg: ChildLeg, through: int) -> None:
        """The child did not keep up. It can fetch the missed messages."""
        leg.is_live, leg.has_left_live, leg.through = False, True, through
        term = self._streams[leg.stream].term
        self._outbox.inform(Lagging(leg.stream, leg.number, through, term), [leg.link])

    def _is_busy(self, leg: ChildLeg) -> bool:
        if len(self._reading) >= READS_MAX:
            return True
        others = self._children[leg.link].legs.values()
        size = sum(each.fetch_bytes for each in others if each.is_coming) + self._fanout.link(leg.link).control
        return size > 0 and size + leg.fetch_bytes > PORTIONS_SIZE_MAX

    def _serve_portion(self, leg: ChildLeg) -> None:
        if leg.is_live or not leg.fetch_bytes:  # the portion arrived on another path in the meantime
            return
        if self._is_complete(leg, leg.through) and self._send_from_history(leg):
            return
        if self._membership.role == "root":
            self._read_journal(leg)
        else:
            self._relay(self._streams[leg.stream], leg)

    def _complete_since(self, leg: ChildLeg) -> int | None:
        return self._upstream.legs_of(leg.stream).coverage.since(leg.wants)

    def _is_complete(self, leg: ChildLeg, after: int) -> bool:
        """True if all messages of the leg after this sequence have arrived, or will arrive, live at this agent."""
        if self._membership.role == "root":
            return True
        begun = self._complete_since(leg)
        return begun is not None and begun <= after

    def has_left_live(self, leg: ChildLeg) -> bool:
        """The fan-out knows it, even if the notice is unread."""
        return leg.has_left_live or (leg.is_live and not self._fanout.is_live(leg.link, leg.number))

    def _is_interrupted(self, leg: ChildLeg) -> bool:
        """True if the child is an agent, and another of its legs of the stream left live. Agents accept whatever comes
        live on a link: if this leg were live, the child would take its packets, and drop what the other leg missed as
        old. A message informs the child, which closes all legs of the stream and asks again."""
        child = self._children[leg.link]
        others = (each for each in child.legs.values() if each is not leg and each.stream == leg.stream)
        return child.is_agent and any(map(self.has_left_live, others))

    def _send_from_history(self, leg: ChildLeg) -> bool:
        with self._fanout:
            if self._is_interrupted(leg):
                return True  # the request waits until the other leg is closed
            portion = self._fanout.fetch(leg.link, leg.number, leg.through, leg.fetch_bytes)
            if portion is None:
                return False
            self._end_portion(leg, portion.packets, max(portion.through, leg.through), is_live=portion.is_live)
        return True

    def _end_portion(self, leg: ChildLeg, packets: bytes, through: int, *, is_live: bool = False) -> None:
        leg.through, leg.is_live, leg.fetch_bytes = through, is_live, 0
        leg.has_left_live &= not is_live
        self._portion_ended(leg)
        self._send_packets(leg, packets)
        self._outbox.send(leg.link, Fetched(leg.number, through, is_live))

    def _portion_ended(self, leg: ChildLeg) -> None:
        leg.is_coming = False
        self._scheduler.portion_ended(leg.link)

    def _send_packets(self, leg: ChildLeg, packets: bytes) -> None:
        if packets:
            self._environment.accounts.fetched(leg.link, count_packets(packets))
            self._outbox.send_frames(leg.link, encode_block(packets, leg=leg.number))

    # The root's journal

    def _read_journal(self, leg: ChildLeg, *, time_ns: int | None = None) -> None:
        self._request += 1
        self._reading[self._request] = leg
        leg.is_coming = leg.is_held
        size = leg.fetch_bytes if leg.is_held else 1
        after = leg.through if leg.is_held else 0
        self._outbox.instruct(ReadJournal(self._request, leg.stream, after, time_ns, size))

    def journal_read(self, event: JournalRead) -> None:
        leg = self._reading.pop(event.request, None)
        if leg is None or self._children.leg(leg.link, leg.number) is not leg:
            return
        self._portion_ended(leg)
        if event.is_failed:
            again = self.serve if leg.is_held else self.begin
            again(leg)
            return
        if not leg.is_held:
            self._hold(self._streams[leg.stream], leg, event.after)
            return
        if event.after > leg.through:
            self._outbox.inform(Gone(leg.stream, leg.number, leg.through + 1, event.after), [leg.link])
        leg.through = max(leg.through, event.after)
        last = self._streams.last(leg.stream)
        packets = event.packets if event.through <= last else _up_to(event.packets, last)
        if packets:
            wanted = self._fanout.select(leg.link, leg.number, packets, SIZE_MAX)
            self._end_portion(leg, wanted.packets, max(min(event.through, last), leg.through))
        elif not self._send_from_history(leg):
            self._end_portion(leg, b"", leg.through)

    # Relays

    def _relay(self, stream: Stream, leg: ChildLeg) -> None:
        """Fetch from the parent, once everything else arrives live on its link."""
        link = self._upstream.link
        if link is None or not self._upstream.legs_of(leg.stream).is_live(link) or self._upstream.is_moving:
            return
        relay = self._relay_for(leg)
        if relay is None:
            begin = Position("sequence", leg.through, stream.term) if leg.is_held else leg.begin
            relay = self._upstream.open_relay(stream, leg.wants, begin, (leg.link, leg.number))
        if leg.is_held and leg.fetch_bytes and not relay.is_fetching:
            relay.is_fetching = leg.is_coming = True
            self._outbox.send(relay.link, Fetch(relay.number, leg.fetch_bytes))

    def _relay_for(self, leg: ChildLeg) -> UpstreamLeg | None:
        return self._upstream.legs_of(leg.stream).relay((leg.link, leg.number))

    def relay_held(self, relay: UpstreamLeg, held: Held) -> None:
        leg = self._child_of(relay)
        if leg is None:
            return
        if held.is_live:
            self._join(relay, held.after)
        if not leg.is_held:
            begin = leg.begin
            if begin.begin == "sequence" and begin.term and held.after < begin.at:  # the parent told only this agent
                self._outbox.inform(Diverged(leg.stream, begin.term, held.after + 1, begin.at), [leg.link])
            self._hold(self._streams[relay.stream], leg, held.after)
        if held.is_live and leg.fetch_bytes:
            self.serve(leg)

    def relay_block(self, relay: UpstreamLeg, packets: bytes) -> None:
        leg = self._child_of(relay)
        if leg is not None:
            wanted = self._fanout.select(leg.link, leg.number, packets, SIZE_MAX)
            self._send_packets(leg, wanted.packets)

    def relay_fetched(self, relay: UpstreamLeg, fetched: Fetched) -> None:
        relay.is_fetching = False
        leg = self._child_of(relay)
        if fetched.is_live:
            self._join(relay, fetched.through)
        if leg is None or not leg.fetch_bytes:
            return
        leg.through = max(leg.through, fetched.through)
        if not fetched.is_live or not self._send_from_history(leg):
            self._end_portion(leg, b"", leg.through)

    def relay_gone(self, relay: UpstreamLeg, gone: Gone) -> None:
        leg = self._child_of(relay)
        if leg is not None:
            self._outbox.inform(Gone(gone.stream, leg.number, gone.first, gone.last), [leg.link])

    def relay_refused(self, relay: UpstreamLeg, refused: Refused) -> None:
        leg = self._child_of(relay)
        if leg is not None:
            self._fanout.close_leg(leg.link, leg.number)
            self._scheduler.remove(leg)
            del self._children[leg.link].legs[leg.number]
            self._outbox.send(leg.link, Refused(refused.code, refused.reason, leg.number))

    def relay_ended(self, child: ChildKey) -> None:
        """The relay for this child's leg has ended."""
        leg = self._children.leg(*child)
        if leg is not None:
            self._portion_ended(leg)

    def _join(self, relay: UpstreamLeg, at: int) -> None:
        if relay.child is not None:
            self.relay_ended(relay.child)
        self._upstream.join_relay(relay, at)

    def _child_of(self, relay: UpstreamLeg) -> ChildLeg | None:
        return None if relay.child is None else self._children.leg(*relay.child)


def _up_to(packets: bytes, last: int) -> bytes:
    """Drop packets after `last`: a journal may be ahead of the last distributed message."""
    return b"".join(packet for packet in split_packets(packets) if decode(packet).sequence <= last)
