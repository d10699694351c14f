"""Those below an agent: who is let in, what each may have, and what is said to each (TREE-3, 6, 7, 10)."""

from collections.abc import Callable

from penstock.base.errors import PenstockError
from penstock.net.core.control import Ping, encode_session
from penstock.net.core.framing import encode_frame
from penstock.tree.core.board import Board, Child, ChildLeg, Stream
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.control import AGENT_ROLES, PATH_MAX, Fetch, Refused, Subscribe, Unsubscribe, Welcome
from penstock.tree.core.entitlements import Rights
from penstock.tree.core.events import Party
from penstock.tree.core.infostream import (
    TEXT_SIZE_MAX,
    Alternates,
    Conflated,
    Info,
    Lagging,
    Load,
    Neighbour,
    Root,
    Siblings,
    Through,
)
from penstock.tree.core.kernel._flow import Brings, LinkClass

PERCENT_TOLD = 10
"""Points by which the load of an agent changes before its siblings hear of it."""

CLASSES = {
    "lossless": LinkClass.LOSSLESS,
    "conflating": LinkClass.CONFLATING,
    "disconnect": LinkClass.DISCONNECT,
}


class Children:
    def __init__(self, board: Board, catch_up: CatchUp, rights: Rights) -> None:
        self._board = board
        self._catch_up = catch_up
        self._rights = rights
        self.siblings: tuple[Neighbour, ...] = ()
        """Agents beside this one, as its parent said."""
        self._is_family_new = False
        self._told: dict[int, int] = {}
        """By stream: the last sequence that all children were told of."""
        self.on_gone: Callable[[Child], None] = lambda child: None

    # Who is let in

    def arrived(
        self, link: int, party: Party, *, published_through: int = 0, is_anothers: bool = False
    ) -> Child | None:
        """None if the party is refused; it has been told why. `is_anothers`: its id as a publisher is known to be that
        of somebody else."""
        board = self._board
        brings = int(Brings.PUBLISHED if party.role == "publisher" else Brings.NOTHING)
        if party.role in AGENT_ROLES:
            brings = Brings.INFO | Brings.PACKETS if party.role == "peer" else Brings.INFO
        board.fanout.open_link(link, brings=brings, cls=CLASSES[party.cls])
        refusal = self._refusal(party, is_anothers=is_anothers)
        if refusal is not None:
            self.refuse(link, refusal)
            return None
        self._replace(party)
        child = Child(link, party, denied=self._rights.denied(party), heard_ns=board.now_ns)
        board.children[link] = child
        board.ledger.begin(link, party.name, party.role, party.cls)
        board.counters.add("consumers_attached")
        streams = tuple(stream.info for stream in board.streams.values())
        board.say(
            link,
            Welcome(
                board.config.name,
                board.config.tree,
                board.term,
                board.path,
                board.is_rooted,
                streams,
                published_through,
            ),
        )
        self._introduce(child)
        return child

    def is_agent_here(self, party: Party) -> bool:
        """Whether it may be an agent of this tree: only what such a one says of the tree is believed."""
        config = self._board.config
        is_listed = not config.agents or party.name in config.agents
        return party.role in AGENT_ROLES and party.tree == config.tree and is_listed

    def _refusal(self, party: Party, *, is_anothers: bool) -> Refused | None:
        board = self._board
        config = board.config
        if party.tree != config.tree:
            return Refused("tree", f"this is an agent of {config.tree}, not of {party.tree}")
        if board.role in ("standby", "fenced"):
            return Refused(board.role, f"{config.name} serves nobody: it is {board.role}", place=self._elsewhere())
        if party.role in AGENT_ROLES:
            return self._agent_refusal(party)
        if party.role == "publisher":
            if board.role != "root":
                return Refused("not-root", "publishers go to the root", place=board.root_place)
            if not party.publisher_id:
                return Refused("publisher", "a publisher has an id")
            if is_anothers or any(_is_of_another(each.party, party) for each in board.children.values()):
                return Refused("publisher", "another party publishes with this id")
            if party.term > board.term:
                why = f"{party.name} knows term {party.term}, {config.name} is the root of {board.term}"
                return Refused("stale", why, place=board.standby_place)
        reason = self._rights.why_none(party)
        if reason is not None:
            return Refused("revoked", f"the authority of {party.name} was revoked: {reason}"[:256])
        return self._limit()

    def _agent_refusal(self, party: Party) -> Refused | None:
        board = self._board
        config = board.config
        if not self.is_agent_here(party):
            return Refused("not-allowed", f"{party.name} is no agent here")
        if party.name in board.path:
            return Refused("cycle", f"{party.name} is above {config.name}, or is it")
        if party.role == "standby" and board.role != "root":
            return Refused("not-root", "a standby is the root's", place=board.root_place)
        if party.role == "peer" and self._is_dialled(party.name):
            return Refused("peered", f"{config.name} has a link to {party.name} already")
        names = " ".join((*board.path, party.name))
        if len(board.path) >= PATH_MAX or len(names.encode()) > TEXT_SIZE_MAX:
            return Refused("depth", f"the tree is {len(board.path)} agents deep here")
        return self._limit()

    def _is_dialled(self, name: str) -> bool:
        """Whether there is a link to this peer that counts more than one from it (peers.py)."""
        peers = [each for each in self._board.children.values() if each.party.role == "peer" and each.is_dialled]
        return self._board.config.name < name and any(each.party.name == name for each in peers)

    def _limit(self) -> Refused | None:
        if len(self._board.children) < self._board.config.children_max:
            return None
        sibling = min(self.siblings, key=lambda each: each.percent, default=None)
        return Refused("limit", "there are too many children here", place=sibling.place if sibling else "")

    def _elsewhere(self) -> str:
        board = self._board
        return board.root_place if board.role == "standby" else board.standby_place

    def _replace(self, party: Party) -> None:
        """An agent, or a publisher, that comes again has lost its link, whether or not that is known here."""
        for child in list(self._board.children.values()):
            same_agent = child.is_agent and child.party.name == party.name and child.party.role == party.role
            same_publisher = child.party.publisher_id and child.party.publisher_id == party.publisher_id
            if (same_agent and party.role in AGENT_ROLES) or same_publisher:
                self.end(child.link, Refused("replaced", f"{party.name} came again"))

    def _introduce(self, child: Child) -> None:
        board = self._board
        board.inform(Root(board.term, board.root_place, board.standby_place), [child.link])
        if self.siblings:
            board.inform(Alternates(_fitting(self.siblings)), [child.link])
        self._rights.tell(child)
        self._is_family_new |= child.party.role == "agent"

    # Leaving

    def refuse(self, link: int, refusal: Refused) -> None:
        """Of the party, or of a leg."""
        board = self._board
        if refusal.number:
            board.counters.add("requests_refused", cause=refusal.code)
        else:
            board.counters.add("consumers_refused", cause=refusal.code)
        board.say(link, refusal)
        if not refusal.number:
            board.close(link, refusal.code, refusal.reason)

    def end(self, link: int, refusal: Refused) -> None:
        """Tell a child that its link is over."""
        self.gone(link)
        self.refuse(link, refusal)

    def gone(self, link: int) -> None:
        child = self._board.children.pop(link, None)
        if child is None:
            return
        for leg in child.legs.values():
            self._close(leg)
        self._is_family_new |= child.party.role == "agent"
        self.on_gone(child)

    def _close(self, leg: ChildLeg) -> None:
        self._board.fanout.close_leg(leg.link, leg.number)
        self._catch_up.abandon(leg)

    # What a child asks for

    def subscribe(self, child: Child, message: Subscribe) -> None:
        board = self._board
        stream = board.stream_of(message.stream)
        if stream is None:
            code, why = (
                ("unknown-stream", "there is no stream") if board.is_rooted else ("not-rooted", "no root, no stream")
            )
            self.refuse(child.link, Refused(code, f"{why} {message.stream!r}", message.number))
            return
        if message.number in child.legs or not message.number or len(child.legs) >= board.config.legs_max:
            self.refuse(child.link, Refused("leg", "the number is in use, or there are too many", message.number))
            return
        leg = ChildLeg(child.link, message.number, stream.number, message.wants, message.wants, message.after)
        try:
            leg.wants = self._rights.granted(child, message.wants)
            compiled = board.conditions.compile(leg.wants, is_agent=child.is_agent)
            board.fanout.open_leg(child.link, leg.number, stream.number, compiled, is_live=False)
        except PenstockError as error:
            self.refuse(child.link, Refused(error.code, str(error)[:256], message.number))
            return
        child.legs[leg.number] = leg
        self._catch_up.begin(stream, leg)

    def fetch(self, child: Child, message: Fetch) -> None:
        leg = child.legs.get(message.number)
        if leg is not None:
            self._catch_up.fetch(self._board.streams[leg.stream], leg, message.bytes_max)

    def unsubscribe(self, child: Child, message: Unsubscribe) -> None:
        leg = child.legs.pop(message.number, None)
        if leg is not None:
            self._close(leg)

    def left_live(self, link: int, number: int, through: int) -> None:
        """The child did not keep up. What it has not taken it can fetch."""
        child = self._board.children.get(link)
        leg = None if child is None else child.legs.get(number)
        if leg is not None:
            leg.is_live, leg.through = False, through
            self._board.inform(Lagging(leg.stream, number, through, self._board.streams[leg.stream].term), [link])

    # What children are told

    def heard(self, child: Child, info: Info) -> None:
        """What an agent below says of itself."""
        if isinstance(info, Load):
            child.percent = min(info.percent, 100)
            self._is_family_new |= abs(child.percent - child.percent_told) >= PERCENT_TOLD

    def _tell_siblings(self) -> None:
        self._is_family_new = False
        agents = [each for each in self._board.children.values() if each.party.role == "agent" and each.party.place]
        family = tuple(Neighbour(each.party.name, each.party.place, each.percent) for each in agents)
        for each in agents:
            each.percent_told = each.percent
        if family:
            self._board.inform(Siblings(_fitting(family)), [each.link for each in agents])

    def set_siblings(self, siblings: tuple[Neighbour, ...]) -> None:
        """What the parent said: they are the alternates of the children here."""
        others = tuple(each for each in siblings if each.name != self._board.config.name)
        if others != self.siblings:
            self.siblings = others
            self._board.inform(Alternates(_fitting(others)))

    def heartbeat(self) -> None:
        """How far the streams are, to those that get them live; and what was left out for those that conflate."""
        board = self._board
        with board.fanout:
            for stream in board.streams.values():
                last = board.last(stream.number)
                if last != self._told.get(stream.number):
                    self._told[stream.number] = last
                    self._tell_through(stream, last)
        if self._is_family_new:
            self._tell_siblings()
        for child in list(board.children.values()):
            if child.party.cls == "conflating":
                self._tell_conflated(child)

    def _tell_through(self, stream: Stream, last: int) -> None:
        links = []
        for child in self._board.children.values():
            legs = [leg for leg in child.legs.values() if leg.stream == stream.number]
            # What waits may still be taken back, if the child turns out to be too slow for it.
            if legs and all(map(self._is_live, legs)) and not self._board.fanout.link(child.link).waiting:
                links.append(child.link)
        if links:
            self._board.inform(Through(stream.number, last, stream.term), links)

    def _is_live(self, leg: ChildLeg) -> bool:
        """That it has left live may still be among the notices."""
        return leg.is_live and self._board.fanout.is_live(leg.link, leg.number)

    def _tell_conflated(self, child: Child) -> None:
        total = self._board.fanout.link(child.link).conflated
        if total > child.conflated:
            self._board.counters.add("messages_conflated", total - child.conflated)
            self._board.inform(Conflated(0, total - child.conflated, 0), [child.link])
            child.conflated = total

    def silent(self, silence_ns: int) -> list[Child]:
        """Ask children whether they live; those who have said nothing for so long."""
        board = self._board
        ping = encode_frame(encode_session(Ping(board.now_ns)))
        found = []
        for child in list(board.children.values()):
            bytes_in = board.fanout.link(child.link).bytes_in
            if bytes_in != child.bytes_in:
                child.bytes_in, child.heard_ns = bytes_in, board.now_ns
            if board.now_ns - child.heard_ns >= silence_ns:
                found.append(child)
            else:
                board.send(child.link, ping, is_behind=False)
        return found


def _is_of_another(party: Party, newcomer: Party) -> bool:
    """Whether the newcomer would publish in the numbering of somebody else."""
    return party.publisher_id == newcomer.publisher_id and party.subject != newcomer.subject


def _fitting(agents: tuple[Neighbour, ...]) -> tuple[Neighbour, ...]:
    """As many as one message takes, the least busy first."""
    found: list[Neighbour] = []
    size = 0
    for agent in sorted(agents, key=lambda each: (each.percent, each.name)):
        size += len(str(agent).encode()) + 1
        if size > TEXT_SIZE_MAX:
            break
        found.append(agent)
    return tuple(found)
