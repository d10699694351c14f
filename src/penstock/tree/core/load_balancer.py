"""LoadBalancer: moves children to another agent, because an operator orders it or because this agent is busy
(TREE-7)."""

from penstock.base.clock import NS_PER_SECOND
from penstock.tree.core.children import ChildTable
from penstock.tree.core.downstream import Downstream, neighbour_of
from penstock.tree.core.environment import Environment
from penstock.tree.core.infostream import MoveTo, Neighbour, ReturnTo
from penstock.tree.core.kernel._fanout import Fanout
from penstock.tree.core.outbox import Outbox

BALANCE_INTERVAL_NS = NS_PER_SECOND


class LoadBalancer:
    def __init__(
        self,
        environment: Environment,
        fanout: Fanout,
        children: ChildTable,
        outbox: Outbox,
        downstream: Downstream,
    ) -> None:
        self._environment = environment
        self._fanout = fanout
        self._children = children
        self._outbox = outbox
        self._downstream = downstream
        self._moved_ns = 0
        self.percent = 0
        """This agent's load."""

    def set_load(self, percent: int) -> bool:
        """True if the load has changed."""
        percent = min(max(percent, 0), 100)
        is_new, self.percent = percent != self.percent, percent
        return is_new

    def balance(self) -> None:
        """At most once per interval: move a child if this agent is busy and a sibling is not, or send a guest home if
        its own agent is no longer busy."""
        now_ns = self._environment.now_ns
        if now_ns - self._moved_ns >= BALANCE_INTERVAL_NS and self._move_one():
            self._moved_ns = now_ns

    def _move_one(self) -> bool:
        config = self._environment.config
        if not config.balance_high:
            return False
        idle = {each.name: each for each in self._downstream.siblings if each.percent < config.balance_low}
        if self.percent < config.balance_high:
            guest = next((child for child in self._children if child.party.home in idle), None)
            if guest is not None:
                self._outbox.inform(ReturnTo(guest.party.home, "its own agent has room"), [guest.link])
            return guest is not None
        movable = [each for each in self._children if each.party.role in ("agent", "subscriber")]
        if not idle or not movable:
            return False
        busiest = max(movable, key=lambda child: self._fanout.link(child.link).bytes_out)
        best = min(idle.values(), key=lambda each: each.percent)
        self._outbox.inform(MoveTo(best.place, "this agent is busy"), [busiest.link])
        return True

    def move(self, name: str, place: str, reason: str) -> None:
        """Ask a child to move to another agent; `place` "": to the least busy one."""
        if not place:
            best = min(self._destinations(name), key=lambda each: each.percent, default=None)
            place = best.place if best else ""
        links = [each.link for each in self._children if each.party.name == name]
        if place and links:
            self._outbox.inform(MoveTo(place, reason), links)

    def _destinations(self, name: str) -> list[Neighbour]:
        """A subscriber can go to this agent's siblings, an agent to its own siblings too."""
        agents = [neighbour_of(each) for each in self._downstream.agents()]
        is_agent = any(each.name == name for each in agents)
        return [each for each in (*self._downstream.siblings, *(agents if is_agent else ())) if each.name != name]

    def send_back(self, name: str, reason: str) -> None:
        """Ask a guest to return to its own agent."""
        for child in self._children:
            if child.party.name == name and child.party.home:
                self._outbox.inform(ReturnTo(child.party.home, reason), [child.link])
