"""Children that go to another agent for the time being, by an operator's word or because this one is busy (TREE-7)."""

from penstock.tree.core.board import Board
from penstock.tree.core.children import Children
from penstock.tree.core.infostream import MoveTo, Neighbour, ReturnTo


class Balancing:
    def __init__(self, board: Board, children: Children) -> None:
        self._board = board
        self._children = children

    def balance(self) -> bool:
        """Send a child away if this agent is too busy and one beside it is not, or a guest home if its own agent is not
        busy any more; whether one was."""
        config = self._board.config
        if not config.balance_high:
            return False
        easy = {each.name: each for each in self._children.siblings if each.percent < config.balance_low}
        if self._board.percent < config.balance_high:
            guest = next((child for child in self._board.children.values() if child.party.home in easy), None)
            if guest is not None:
                self._board.inform(ReturnTo(guest.party.home, "its own agent has room"), [guest.link])
            return guest is not None
        movable = [each for each in self._board.children.values() if each.party.role in ("agent", "subscriber")]
        if not easy or not movable:
            return False
        busiest = max(movable, key=lambda child: self._board.fanout.link(child.link).bytes_out)
        best = min(easy.values(), key=lambda each: each.percent)
        self._board.inform(MoveTo(best.place, "this agent is busy"), [busiest.link])
        return True

    def move(self, name: str, place: str, reason: str) -> None:
        """Ask a child to go to another agent for the time being."""
        if not place:
            best = min((each for each in self._others(name)), key=lambda each: each.percent, default=None)
            place = best.place if best else ""
        links = [each.link for each in self._board.children.values() if each.party.name == name]
        if place and links:
            self._board.inform(MoveTo(place, reason), links)

    def _others(self, name: str) -> list[Neighbour]:
        """Where a child can go: an agent to its siblings here or to this agent's, a subscriber to this agent's."""
        agents = [each for each in self._board.children.values() if each.party.role == "agent" and each.party.place]
        family = [Neighbour(each.party.name, each.party.place, each.percent) for each in agents]
        is_agent = any(each.party.name == name for each in agents)
        return [each for each in (*self._children.siblings, *(family if is_agent else ())) if each.name != name]

    def send_back(self, name: str, reason: str) -> None:
        for child in list(self._board.children.values()):
            if child.party.name == name and child.party.home:
                self._board.inform(ReturnTo(child.party.home, reason), [child.link])
