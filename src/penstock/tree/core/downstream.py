"""Downstream: admits an agent's children, serves their legs, checks entitlements, informs them (TREE-3, 6, 7, 10).

If a newcomer replaces an earlier link of the same party (replaced_by), the agent ends that link, because other parts
have to forget it too.
"""

import msgspec

from penstock.base.errors import LimitError, NotEntitledError, PenstockError
from penstock.net.core.control import Ping, encode_session
from penstock.net.core.framing import encode_frame
from penstock.security.core.token import Grant
from penstock.tree.core.catch_up import CatchUp
from penstock.tree.core.children import Child, ChildLeg, ChildTable
from penstock.tree.core.control import AGENT_ROLES, PATH_MAX, Fetch, Refused, Subscribe, Unsubscribe, Welcome
from penstock.tree.core.entitlements import Entitlements, granted
from penstock.tree.core.environment import Environment
from penstock.tree.core.events import Party
from penstock.tree.core.infostream import (
    TEXT_SIZE_MAX,
    Alternates,
    Conflated,
    Neighbour,
    Revoked,
    Root,
    Siblings,
    Through,
    portions,
)
from penstock.tree.core.kernel._fanout import Brings, Fanout, LinkClass
from penstock.tree.core.membership import Membership
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.streams import Stream, StreamTable
from penstock.tree.core.want_compiler import WantCompiler

LOAD_STEP_PERCENT = 10
"""Change of an agent's load after which its siblings are told."""

CLASSES = {
    "lossless": LinkClass.LOSSLESS,
    "conflating": LinkClass.CONFLATING,
    "disconnect": LinkClass.DISCONNECT,
}


class Downstream:
    def __init__(
        self,
        environment: Environment,
        fanout: Fanout,
        membership: Membership,
        streams: StreamTable,
        children: ChildTable,
        outbox: Outbox,
        catch_up: CatchUp,
        compiler: WantCompiler,
    ) -> None:
        self._environment = environment
        self._fanout = fanout
        self._membership = membership
        self._streams = streams
        self._children = children
        self._outbox = outbox
        self._catch_up = catch_up
        self._compiler = compiler
        self.entitlements = Entitlements()
        self.siblings: tuple[Neighbour, ...] = ()
        """The other children of this agent's parent."""
        self._are_siblings_due = False
        """True if the agents below must be told of each other."""
        self._announced: dict[int, int] = {}
        """By stream: the last announced sequence."""

    # Admission

    def open_link(self, link: int, party: Party) -> None:
        brings = int(Brings.PUBLISHED if party.role == "publisher" else Brings.NOTHING)
        if party.role in AGENT_ROLES:
            brings = Brings.INFO | Brings.PACKETS if party.role == "peer" else Brings.INFO
        self._fanout.open_link(link, brings=brings, cls=CLASSES[party.cls])

    def is_agent_of_tree(self, party: Party) -> bool:
        """True if the party may be an agent of this tree; only then its term is trusted."""
        config = self._environment.config
        is_listed = not config.agents or party.name in config.agents
        return party.role in AGENT_ROLES and party.tree == config.tree and is_listed

    def refusal_of(self, party: Party, *, is_id_taken: bool) -> Refused | None:
        """Return a refusal, or None if the party is accepted. `is_id_taken`: its publisher id belongs to another
        party."""
        membership, config = self._membership, self._environment.config
        if party.tree != config.tree:
            return Refused("tree", f"this is an agent of {config.tree}, not of {party.tree}")
        if membership.role in ("standby", "fenced"):
            elsewhere = membership.root_place if membership.role == "standby" else membership.standby_place
            why = f"{config.name} accepts no children: its role is {membership.role}"
            return Refused(membership.role, why, place=elsewhere)
        if party.role in AGENT_ROLES:
            return self._agent_refusal(party)
        if party.role == "publisher" and (refusal := self._publisher_refusal(party, is_id_taken=is_id_taken)):
            return refusal
        reason = self.entitlements.revocation_reason(party)
        if reason is not None:
            return Refused("revoked", f"the authority of {party.name} was revoked: {reason}"[:256])
        return self._limit_refusal()

    def _agent_refusal(self, party: Party) -> Refused | None:
        membership, config = self._membership, self._environment.config
        if not self.is_agent_of_tree(party):
            return Refused("not-allowed", f"{party.name} is not a permitted agent here")
        if party.name in membership.path:
            return Refused("cycle", f"{party.name} is in the path from the root to {config.name}")
        if party.role == "standby" and membership.role != "root":
            return Refused("not-root", "a standby connects to the root", place=membership.root_place)
        if party.role == "peer" and self._has_preferred_link_to(party.name):
            return Refused("peered", f"{config.name} has a link to {party.name} already")
        names = " ".join((*membership.path, party.name))
        if len(membership.path) >= PATH_MAX or len(names.encode()) > TEXT_SIZE_MAX:
            return Refused("depth", f"the path from the root already has {len(membership.path)} agents")
        return self._limit_refusal()

    def _publisher_refusal(self, party: Party, *, is_id_taken: bool) -> Refused | None:
        membership = self._membership
        if membership.role != "root":
            return Refused("not-root", "publishers go to the root", place=membership.root_place)
        if not party.publisher_id:
            return Refused("publisher", "a publisher needs an id")
        if is_id_taken or any(_is_id_of_another(each.party, party) for each in self._children):
            return Refused("publisher", "another party publishes with this id")
        if party.term > membership.term:
            name = self._environment.config.name
            why = f"{party.name} knows term {party.term}, {name} is the root of {membership.term}"
            return Refused("stale", why, place=membership.standby_place)
        return None

    def _has_preferred_link_to(self, peer: str) -> bool:
        """True if this agent opened a link to the peer that wins over one from the peer (peers.py)."""
        dialled = [each for each in self._children.of_role("peer") if each.is_dialled]
        return self._environment.config.name < peer and any(each.party.name == peer for each in dialled)

    def _limit_refusal(self) -> Refused | None:
        if len(self._children) < self._environment.config.children_max:
            return None
        sibling = min(self.siblings, key=lambda each: each.percent, default=None)
        return Refused("limit", "there are too many children here", place=sibling.place if sibling else "")

    def replaced_by(self, party: Party) -> list[Child]:
        """Children that are earlier links of this agent or publisher."""

        def is_same(child: Child) -> bool:
            is_same_agent = child.is_agent and child.party.name == party.name and child.party.role == party.role
            is_same_publisher = child.party.publisher_id and child.party.publisher_id == party.publisher_id
            return (is_same_agent and party.role in AGENT_ROLES) or bool(is_same_publisher)

        return [child for child in self._children if is_same(child)]

    def admit(self, link: int, party: Party, published_through: int) -> Child:
        membership, config = self._membership, self._environment.config
        denied = self.entitlements.denied(party)
        child = Child(link, party, denied=denied, heard_ns=self._environment.now_ns)
        self._children.add(child)
        self._environment.accounts.begin(link, party.name, party.role, party.cls)
        self._environment.counters.add("consumers_attached")
        streams = tuple(stream.info for stream in self._streams)
        path, is_rooted, term = membership.path, membership.is_rooted, membership.term
        welcome = Welcome(config.name, config.tree, term, path, is_rooted, streams, published_through)
        self._outbox.send(link, welcome)
        self._introduce(child)
        return child

    def admit_dialled_peer(self, link: int, party: Party) -> None:
        """A peer to which this agent opened the link; each side is a child of the other."""
        self._children.add(Child(link, party, heard_ns=self._environment.now_ns, is_dialled=True))
        self._environment.accounts.begin(link, party.name, "peer")

    def _introduce(self, child: Child) -> None:
        membership = self._membership
        self._outbox.inform(Root(membership.term, membership.root_place, membership.standby_place), [child.link])
        if self.siblings:
            self._outbox.inform(Alternates(_fitting(self.siblings)), [child.link])
        patterns, reason = self.entitlements.revoked(child.party)
        if patterns:
            self._inform_revoked(child, tuple(each[1:] for each in patterns), reason)
        self._are_siblings_due |= child.party.role == "agent"

    # Leaving

    def refuse(self, link: int, refusal: Refused) -> None:
        """Refuse a leg; or, with number 0, the party, whose link closes."""
        counter = "requests_refused" if refusal.number else "consumers_refused"
        self._environment.counters.add(counter, cause=refusal.code)
        self._outbox.send(link, refusal)
        if not refusal.number:
            self._outbox.close(link, refusal.code, refusal.reason)

    def remove(self, link: int) -> Child | None:
        child = self._children.remove(link)
        if child is not None:
            for leg in child.legs.values():
                self._close(leg)
            self._are_siblings_due |= child.party.role == "agent"
        return child

    def _close(self, leg: ChildLeg) -> None:
        self._fanout.close_leg(leg.link, leg.number)
        self._catch_up.abandon(leg)

    # Legs

    def subscribe(self, child: Child, message: Subscribe) -> None:
        stream = self._streams.named(message.stream)
        if stream is None:
            code, why = ("unknown-stream", "there is no stream")
            if not self._membership.is_rooted:
                code, why = ("not-rooted", "without a root there is no stream")
            self.refuse(child.link, Refused(code, f"{why} {message.stream!r}", message.number))
            return
        if message.number in child.legs or not message.number or self._has_too_many_legs(child):
            self.refuse(child.link, Refused("leg", "the number is in use, or there are too many", message.number))
            return
        leg = ChildLeg(child.link, message.number, stream.number, message.wants, message.wants, message.after)
        try:
            leg.wants = granted(child.party.grants, child.denied, message.wants)
            compiled = self._compiler.compile(leg.wants, is_agent=child.is_agent)
            self._fanout.open_leg(child.link, leg.number, stream.number, compiled, is_live=False)
        except PenstockError as error:
            self.refuse(child.link, Refused(error.code, str(error)[:256], message.number))
            return
        child.legs[leg.number] = leg
        self._catch_up.begin(leg)

    def _has_too_many_legs(self, child: Child) -> bool:
        return len(child.legs) >= self._environment.config.legs_max

    def fetch(self, child: Child, message: Fetch) -> None:
        leg = child.legs.get(message.number)
        if leg is not None:
            self._catch_up.fetch(leg, message.bytes_max)

    def unsubscribe(self, child: Child, message: Unsubscribe) -> None:
        leg = child.legs.pop(message.number, None)
        if leg is not None:
            has_left_live = self._catch_up.has_left_live(leg)
            self._close(leg)
            if has_left_live:  # other legs may have waited for this one
                for other in list(child.legs.values()):
                    self._catch_up.serve(other)

    # Entitlements

    def revoke(self, name: str, topics: tuple[str, ...], reason: str, *, is_lasting: bool) -> bool:
        """True if a child here lost something; its neighbours are not affected."""
        patterns = self.entitlements.revoke(name, topics, reason, is_lasting=is_lasting)
        affected = [child for child in self._children if child.party.is_called(name)]
        for child in affected:
            child.denied = tuple(dict.fromkeys((*child.denied, *patterns)))
            # Packets that wait for the link may be among the revoked ones: the child fetches again what it may receive.
            self._fanout.take_back(child.link)
            self._regrant(child)
            self._inform_revoked(child, topics, reason)
        return bool(affected)

    def renew(self, child: Child, grants: tuple[Grant, ...] | None) -> None:
        """Use a newer token. The child no longer gets topics without a grant, and is told."""
        before = {number: leg.wants for number, leg in child.legs.items()}
        child.party = msgspec.structs.replace(child.party, grants=grants)
        child.denied = self.entitlements.denied(child.party)
        self._regrant(child)
        lost = [
            number for number, wants in before.items() if number not in child.legs or child.legs[number].wants != wants
        ]
        topics = tuple(dict.fromkeys(topic for number in lost for want in before[number] for topic in want.topics))
        if lost:
            self._inform_revoked(child, topics, "the token no longer grants it")

    def _regrant(self, child: Child) -> None:
        """Limit each leg to its granted part; close legs without one."""
        for leg in list(child.legs.values()):
            try:
                wants = granted(child.party.grants, child.denied, leg.asked)
            except (NotEntitledError, LimitError):
                del child.legs[leg.number]
                self._close(leg)
                continue
            if wants != leg.wants:
                leg.wants = wants
                compiled = self._compiler.compile(wants, is_agent=child.is_agent)
                self._fanout.change_leg(child.link, leg.number, compiled)
                self._catch_up.abandon(leg)
                self._catch_up.serve(leg)

    def _inform_revoked(self, child: Child, topics: tuple[str, ...], reason: str) -> None:
        for part in portions(topics):
            self._outbox.inform(Revoked(part, reason), [child.link])

    # Messages to children

    def set_load(self, child: Child, percent: int) -> None:
        """The load of an agent below."""
        child.percent = min(percent, 100)
        self._are_siblings_due |= abs(child.percent - child.percent_announced) >= LOAD_STEP_PERCENT

    def agents(self) -> list[Child]:
        """Children that are agents to which others can move."""
        return [each for each in self._children.of_role("agent") if each.party.place]

    def _inform_siblings(self) -> None:
        self._are_siblings_due = False
        agents = self.agents()
        for each in agents:
            each.percent_announced = each.percent
        if agents:
            neighbours = tuple(map(neighbour_of, agents))
            self._outbox.inform(Siblings(_fitting(neighbours)), [each.link for each in agents])

    def set_siblings(self, siblings: tuple[Neighbour, ...]) -> None:
        """The parent told this agent its siblings: they are the alternates of its children."""
        others = tuple(each for each in siblings if each.name != self._environment.config.name)
        if others != self.siblings:
            self.siblings = others
            self._outbox.inform(Alternates(_fitting(others)))

    def heartbeat(self) -> None:
        """Send live children the positions of the streams, and conflating children the counts of omitted messages."""
        with self._fanout:
            for stream in self._streams:
                last = self._streams.last(stream.number)
                if last != self._announced.get(stream.number):
                    self._announced[stream.number] = last
                    self._inform_through(stream, last)
        if self._are_siblings_due:
            self._inform_siblings()
        for child in self._children:
            if child.party.cls == "conflating":
                self._inform_conflated(child)

    def _inform_through(self, stream: Stream, last: int) -> None:
        links = [child.link for child in self._children if self._has_everything(child, stream.number)]
        if links:
            self._outbox.inform(Through(stream.number, last, stream.term), links)

    def _has_everything(self, child: Child, stream: int) -> bool:
        """Waiting packets may still be taken back, if the child is too slow for them."""
        legs = [leg for leg in child.legs.values() if leg.stream == stream]
        return bool(legs) and all(map(self._is_live, legs)) and not self._fanout.link(child.link).waiting

    def _is_live(self, leg: ChildLeg) -> bool:
        """The fan-out knows whether the leg has left live, even if the notice is unread."""
        return leg.is_live and self._fanout.is_live(leg.link, leg.number)

    def _inform_conflated(self, child: Child) -> None:
        total = self._fanout.link(child.link).conflated
        if total > child.conflated:
            self._environment.counters.add("messages_conflated", total - child.conflated)
            self._outbox.inform(Conflated(0, total - child.conflated, 0), [child.link])
            child.conflated = total

    def ping(self, silence_ns: int) -> list[Child]:
        """Ping all children, except those that have been silent for `silence_ns`: they are returned."""
        now_ns = self._environment.now_ns
        ping = encode_frame(encode_session(Ping(now_ns)))
        silent = []
        for child in self._children:
            bytes_in = self._fanout.link(child.link).bytes_in
            if bytes_in != child.bytes_in:
                child.bytes_in, child.heard_ns = bytes_in, now_ns
            if now_ns - child.heard_ns >= silence_ns:
                silent.append(child)
            else:
                self._outbox.send_frames(child.link, ping, is_behind=False)
        return silent


def neighbour_of(child: Child) -> Neighbour:
    return Neighbour(child.party.name, child.party.place, child.percent)


def _is_id_of_another(party: Party, newcomer: Party) -> bool:
    """True if the newcomer would publish with the id of a party that is here."""
    return party.publisher_id == newcomer.publisher_id and party.subject != newcomer.subject


def _fitting(agents: tuple[Neighbour, ...]) -> tuple[Neighbour, ...]:
    """The least busy agents that fit into one message."""
    found: list[Neighbour] = []
    size = 0
    for agent in sorted(agents, key=lambda each: (each.percent, each.name)):
        size += len(str(agent).encode()) + 1
        if size > TEXT_SIZE_MAX:
            break
        found.append(agent)
    return tuple(found)
