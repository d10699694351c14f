"""Faults of a distribution tree, and the commands of its operators."""

from typing import TYPE_CHECKING

from penstock.base.clock import NS_PER_MS
from penstock.sim.fault_schedule import FaultSchedule
from penstock.sim.tree.links import FAST_BYTES_PER_S, TreeEnd
from penstock.sim.tree.nodes import AgentNode
from penstock.tree.core.control import OLDEST
from penstock.tree.core.events import Move, Promote, SendBack

if TYPE_CHECKING:
    from penstock.sim.tree.plant import TreePlant

OUTAGE_NS_MAX = 400 * NS_PER_MS
CUT_NS_MAX = 900 * NS_PER_MS
STALL_NS_MAX = 300 * NS_PER_MS
SLOW_BYTES_PER_S = 20_000
ASKING_NS_MAX = 40 * NS_PER_MS


class TreeFaultSchedule(FaultSchedule):
    def __init__(self, plant: "TreePlant") -> None:
        super().__init__(plant.world, plant.options.fault_interval_ms)
        self._plant = plant
        self.moves = self.cuts = self.takeovers = self.anew = 0
        self.is_over = False

    def stop(self) -> None:
        super().stop()
        self.is_over = True
        plant = self._plant
        plant.network.heal()
        for link in plant.network.alive():
            link.bytes_per_s = FAST_BYTES_PER_S
            for end in link.ends:
                self._read(end)
        for node in plant.agents:
            if not plant.is_dead(node):
                self.restart(node)

    def strike(self) -> None:
        kinds = [
            self._crash_agent, self._crash_agent, self._crash_root, self._cut, self._cut, self._stall_agent,
            self._stall_reader, self._stall_reader, self._slow, self._move, self._move, self._send_back,
            self._break_link, self._revoke, self._restart_subscriber, self._forget, self._ask_from_the_past,
            self._ask_from_the_past,
        ]  # fmt: skip
        self.randomness.choose(kinds)()

    def _crash_agent(self) -> None:
        agents = [node for node in self._plant.agents if node.config.role == "agent"]
        if agents:
            self.crash(self.randomness.choose(agents), OUTAGE_NS_MAX)

    def _crash_root(self) -> None:
        """Crash the root for a while; or for good, if there is a standby that takes over."""
        plant = self._plant
        root = plant.root
        standby = plant.standby
        if (
            standby is not None
            and standby.became is not None
            and not plant.is_taken_over
            and self.randomness.chance(0.5)
        ):
            self.takeovers += 1
            plant.is_taken_over = True
            self._log("the root dies for ever")
            root.crash()
            if plant.options.promotes_by_hand:
                self._promote(standby)
            else:
                self._look_after(standby, standby.incarnation)
        elif not plant.is_dead(root):
            self.crash(root, OUTAGE_NS_MAX)

    def _promote(self, standby: AgentNode) -> None:
        """Act as an operator, and check the result."""
        standby.handle(Promote())
        if standby.became is None or standby.became.role != "root":
            self._world.after(200 * NS_PER_MS, lambda: self._promote(standby))

    def _look_after(self, standby: AgentNode, incarnation: int) -> None:
        """A standby that was restarted before it took over waits for an operator."""
        if standby.incarnation != incarnation:
            self._promote(standby)
        elif standby.became is None or standby.became.role != "root":
            self._world.after(200 * NS_PER_MS, lambda: self._look_after(standby, incarnation))

    def _cut(self) -> None:
        links = self._plant.network.alive()
        if links:
            one, other = (end.party.name for end in self.randomness.choose(links).ends)
            self.cuts += 1
            self._log(f"the link from {one} to {other} is cut")
            self._plant.network.cut(one, other)
            self._world.after(self.randomness.below(CUT_NS_MAX), lambda: self._plant.network.mend(one, other))

    def _break_link(self) -> None:
        links = self._plant.network.alive()
        if links:
            self._log("a link breaks")
            self.randomness.choose(links).break_off()

    def _stall_agent(self) -> None:
        self.randomness.choose(self._plant.agents).stall(self.randomness.below(STALL_NS_MAX))

    def _stall_reader(self) -> None:
        """A subscriber does not read for a while."""
        sessions = [session for each in self._plant.subscribers for session in each.sessions.values()]
        if sessions:
            end = self.randomness.choose(sessions).end
            end.is_reading = False
            self._log(f"{end.party.name} does not read")
            self._world.after(self.randomness.below(2 * STALL_NS_MAX), lambda: self._read(end))

    def _read(self, end: TreeEnd) -> None:
        end.is_reading = True
        end.other.resume()

    def _slow(self) -> None:
        links = self._plant.network.alive()
        if links:
            link = self.randomness.choose(links)
            link.bytes_per_s = SLOW_BYTES_PER_S
            self._log("a line is slow")

            def clear() -> None:
                link.bytes_per_s = FAST_BYTES_PER_S

            self._world.after(self.randomness.below(STALL_NS_MAX), clear)

    def _move(self) -> None:
        """An operator asks a child, agent or subscriber, to go to another agent."""
        node = self.randomness.choose([each for each in self._plant.agents if each.is_up] or self._plant.agents)
        if node.is_up and node.core is not None:
            children = [child.party for child in node.agent.children]
            movable = [each.name for each in children if each.role in ("agent", "subscriber")]
            if movable:
                self.moves += 1
                to = self.randomness.choose([each for each in self._plant.agents if each.config.role == "agent"])
                node.handle(Move(self.randomness.choose(movable), to.place, "an operator's wish"))

    def _send_back(self) -> None:
        for node in self._plant.agents:
            if node.is_up and node.core is not None:
                for name in [each.party.name for each in node.agent.children if each.party.home]:
                    node.handle(SendBack(name, "an operator's wish"))
                    return

    def _revoke(self) -> None:
        subscribers = [each for each in self._plant.subscribers if not self._plant.is_revoked(each.name)]
        if subscribers and self.randomness.chance(0.3):
            self._plant.revoke(self.randomness.choose(subscribers))

    def _restart_subscriber(self) -> None:
        subscriber = self.randomness.choose(self._plant.subscribers)
        if subscriber.is_up:
            subscriber.stop()
            self._world.after(self.randomness.below(OUTAGE_NS_MAX), subscriber.start)

    def _ask_from_the_past(self) -> None:
        """Subscribe to the oldest messages while its agent, or an agent above it, gets another parent: at once, or
        in the middle."""
        plant = self._plant
        subscribers = [each for each in plant.subscribers if each.is_up and not plant.is_revoked(each.name)]
        if not subscribers:
            return
        subscriber = self.randomness.choose(subscribers)
        self._log(f"{subscriber.name} begins anew")
        self.anew += 1
        subscriber.begin_anew(OLDEST)
        home = plant.at_place(subscriber.places[0])
        if home is not None and home.became is not None and home.became.path:
            name = self.randomness.choose(list(home.became.path))
            self._world.after(self.randomness.below(ASKING_NS_MAX), lambda: self._move_agent(name))

    def _move_agent(self, name: str) -> None:
        to = self.randomness.choose([each for each in self._plant.agents if each.config.role == "agent"])
        for node in self._plant.agents:
            children = node.agent.children if node.core is not None else ()
            if node.is_up and any(each.party.name == name for each in children):
                self.moves += 1
                node.handle(Move(name, to.place, "an operator's wish"))
                return

    def _forget(self) -> None:
        """Remove the older half of a stream at the root."""
        if self.randomness.chance(self._plant.options.forgets):
            root = self._plant.root
            for stream in root.disk.infos:
                last = root.disk.stores[stream].last
                root.disk.remove_through(stream, self._plant.note_removed(stream, last // 2))
