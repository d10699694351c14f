"""How an agent finds its parent, keeps it, and gets another one (TREE-4, 7, 8).

When a link is lost the administrator's table says where to look, in which order; a place at which an agent answers is
taken as parent if that agent is rooted, its term is not older than what is known, and this agent is not above it. So no
cycle arises from what is known, and one that arises from what was not known ends as soon as the paths are told on:
whoever finds itself in its parent's path leaves. A move opens the new link before the old one is given up.
"""

from collections import deque
from collections.abc import Callable

from penstock.base.backoff import pause_ns
from penstock.base.clock import NS_PER_MS, Randomness
from penstock.tree.config import Step
from penstock.tree.core.attempts import Attempt, Purpose
from penstock.tree.core.board import Board
from penstock.tree.core.control import Login, Refused, RenewToken, Welcome
from penstock.tree.core.events import Connect
from penstock.tree.core.infostream import Info, Neighbour, ParentFound, ParentLost, Path
from penstock.tree.core.kernel._flow import Brings, LinkClass
from penstock.tree.core.kernel._frame import encode_block
from penstock.tree.core.peers import Peering
from penstock.tree.core.upstream import Upstream

PROBE_HEARTBEATS = 10
"""How often, in heartbeats, a root asks whether its standby has taken over."""


class Parents:
    def __init__(self, board: Board, upstream: Upstream, randomness: Randomness) -> None:
        self._board = board
        self._upstream = upstream
        self.peering = Peering(board, upstream)
        self._randomness = randomness
        self._attempts: dict[int, Attempt] = {}
        self._number = 0
        self._steps: tuple[Step, ...] = ()
        self._queue: deque[str | None] = deque()
        """Places to try; None is a pause."""
        self._rounds = 0
        self.retry_ns: int | None = None
        self.place = ""
        """Of the parent, or of the one that was lost."""
        self.home: Neighbour | None = None
        """Whom to go back to, after a move."""
        self.alternates: tuple[Neighbour, ...] = ()
        """Agents beside the parent, as it said."""
        self._heard = (0, 0)
        """Bytes that came from the parent, and since when there are not more."""
        self.lost_ns = 0
        self._new_path: tuple[tuple[str, ...], int] = ((), 0)
        """Path and term of the agent that is to be the parent."""
        self.on_adopted: Callable[[], None] = lambda: None
        self.on_fenced: Callable[[int, str], None] = lambda term, place: None

    # Finding

    def start(self) -> None:
        config = self._board.config
        self.place = config.parent
        self.lost_ns = self._board.now_ns
        if config.parent and self._board.role != "root":
            self._search(("parent", *config.on.parent_lost))
        self.peering.start()

    def _search(self, steps: tuple[Step, ...]) -> None:
        self._steps = steps
        self._rounds = 0
        self._fill()
        self._next()

    def _fill(self) -> None:
        config = self._board.config
        places: list[str | None] = []
        for step in self._steps:
            match step:
                case "parent":
                    places.append(config.parent)
                case "alternate":
                    places += config.alternates
                case "sibling":
                    places += [each.place for each in self.alternates]
                case "wait":
                    places += [None, self.place]
        places += [config.parent, self.place]  # the first may be below this agent by now
        if self.place == self._board.root_place:
            places.append(self._board.standby_place or None)
        self._queue = deque(dict.fromkeys(place for place in places if place != self._board.place))

    @property
    def _is_searching(self) -> bool:
        return bool(self._steps)

    def _pending(self) -> Attempt | None:
        return next((each for each in self._attempts.values() if each.purpose == "parent"), None)

    def _next(self) -> None:
        """Try the next place, unless one is being tried or a pause has to pass."""
        if not self._is_searching or self._pending() is not None:
            return
        if not self._queue:
            self._rounds += 1
            self._fill()
            self._pause()
            return
        place = self._queue.popleft()
        if place is None:
            self._pause()
        elif place == self.place and self._upstream.link is not None:
            self._next()
        else:
            self._connect(place, "parent")

    def _pause(self) -> None:
        wait_ns = pause_ns(self._board.config.backoff, self._rounds + 1, self._randomness)
        self.retry_ns = self._board.now_ns + wait_ns

    def _connect(self, place: str, purpose: Purpose, home: str = "") -> None:
        self._number += 1
        deadline_ns = self._board.now_ns + 2 * self._board.config.silence_ms * NS_PER_MS
        self._attempts[self._number] = Attempt(self._number, place, purpose, deadline_ns, home)
        self._board.out.append(Connect(self._number, place))

    # What becomes of an attempt

    def connected(self, number: int, link: int, name: str) -> None:
        board = self._board
        attempt = self._attempts.get(number)
        if attempt is None:
            board.close(link, "late")
            return
        attempt.link, attempt.name = link, name
        board.fanout.open_link(link, brings=Brings.PACKETS | Brings.INFO, cls=LinkClass.LOSSLESS)
        role = "peer" if attempt.purpose == "peer" else "standby" if board.role == "standby" else "agent"
        config = board.config
        board.say(link, Login(config.name, role, config.tree, board.token, board.place, attempt.home, term=board.term))  # type: ignore[arg-type]

    def renew(self, token: str) -> None:
        """By which the agents that this one went to are to know it from now on."""
        self._board.token = token
        going = (each.link for each in self._attempts.values())
        for link in filter(None, (self._upstream.link, *going, *self.peering.dialled())):
            self._board.say(link, RenewToken(token))

    def failed(self, number: int, why: str) -> None:
        if (attempt := self._attempts.pop(number, None)) is not None:
            self._note(attempt, why)
            self._over(attempt)

    def _note(self, attempt: Attempt, why: str) -> None:
        if attempt.purpose == "parent":
            self._board.why_alone = f"{attempt.place}: {why}"

    def _over(self, attempt: Attempt) -> None:
        """It came to nothing."""
        if attempt.link is not None:
            self._upstream.drop_link(attempt.link)
        if attempt.purpose == "peer":
            self.peering.failed(attempt.place)
        elif attempt.purpose == "parent":
            self._upstream.is_moving = False
            if self._upstream.link is None or self._is_searching:
                self._next()
            self.on_adopted()

    def _leave(self, attempt: Attempt, cause: str, why: str = "") -> None:
        del self._attempts[attempt.number]
        self._note(attempt, why or cause)
        if attempt.link is not None:
            self._board.close(attempt.link, cause)
        self._over(attempt)

    def attempt_on(self, link: int) -> Attempt | None:
        return next((each for each in self._attempts.values() if each.link == link), None)

    def welcome(self, attempt: Attempt, message: Welcome) -> None:
        board = self._board
        if message.tree != board.config.tree:
            self._leave(attempt, "tree")
        elif message.term > board.term and board.role == "root":
            self._leave(attempt, "fenced")
            self.on_fenced(message.term, attempt.place)
        elif attempt.purpose == "probe":
            self._leave(attempt, "probe")
        elif attempt.purpose == "peer":
            del self._attempts[attempt.number]
            assert attempt.link is not None
            self.peering.welcome(attempt.link, attempt.name, attempt.place, message)
        elif board.config.name in message.path or not message.is_rooted or message.term < board.term:
            board.counters.add("requests_refused", cause="cycle" if board.config.name in message.path else "not-rooted")
            self._leave(attempt, "not-rooted")
        elif self._upstream.link is None:
            self._adopt(attempt, message)
        else:
            self._begin_move(attempt, message)

    def refused(self, attempt: Attempt, message: Refused) -> None:
        if message.place and message.code in ("standby", "fenced", "not-root", "limit"):
            self._queue.appendleft(message.place)
        self._leave(attempt, message.code, f"{message.reason} [{message.code}]")

    # Having a parent

    def _take(self, attempt: Attempt) -> int:
        """It is the parent now; its link."""
        board = self._board
        del self._attempts[attempt.number]
        assert attempt.link is not None
        self._upstream.link, self._upstream.is_moving = attempt.link, False
        self.place, board.parent = attempt.place, attempt.name
        board.ledger.begin(attempt.link, attempt.name, "parent")
        board.why_alone = ""
        self._steps, self.retry_ns = (), None
        self._heard = (0, board.now_ns)
        return attempt.link

    def _adopt(self, attempt: Attempt, message: Welcome) -> None:
        link = self._take(attempt)
        self.set_path(message.path, is_rooted=True, term=message.term, is_found=True)
        for info in message.streams:
            self._upstream.learn(info)
        self._upstream.ask_all(link)
        self.on_adopted()

    def set_path(self, above: tuple[str, ...], *, is_rooted: bool, term: int, is_found: bool = False) -> None:
        """Where the parent is. If that is below this agent, it is left."""
        board = self._board
        if board.config.name in above:
            board.counters.add("requests_refused", cause="cycle")
            self.leave_parent("cycle")
            return
        path = (*above, board.config.name)
        is_new = (path, is_rooted, max(term, board.term)) != (board.path, board.is_rooted, board.term)
        board.path, board.is_rooted, board.term = path, is_rooted, max(term, board.term)
        if is_found:
            board.inform(ParentFound(board.config.name, path, board.parent, is_rooted, board.term))
        elif is_new:
            board.inform(Path(board.config.name, path, is_rooted, board.term))
        if is_rooted and self._upstream.link is not None and not self._upstream.is_moving:
            self._steps, self.retry_ns = (), None
        board.show()

    def leave_parent(self, why: str) -> None:
        link = self._upstream.link
        if link is not None:
            self._board.close(link, why)
            self.lost(link)

    def lost(self, link: int) -> None:
        """The parent's link is gone: say so, and look for another."""
        board = self._board
        self._upstream.drop_link(link)
        self._upstream.link = None
        self.lost_ns = board.now_ns
        other, board.parent = board.parent, ""
        board.is_rooted = False
        board.counters.add("upstream_lost")
        board.inform(ParentLost(board.config.name, other, board.term))
        board.inform(Path(board.config.name, board.path, False, board.term))
        board.show()
        moving = self._pending()
        if moving is not None and moving.is_welcome:
            self._switch(moving)
        else:
            self._search(board.config.on.parent_lost)

    def give_up(self) -> None:
        """No parent is wanted any more."""
        for attempt in [each for each in self._attempts.values() if each.purpose == "parent"]:
            del self._attempts[attempt.number]
            if attempt.link is not None:
                self._board.close(attempt.link, "promoted")
        link, self._upstream.link = self._upstream.link, None
        if link is not None:
            self._upstream.drop_link(link)
            self._board.close(link, "promoted")
        self._steps, self.retry_ns = (), None

    def parent_stops(self) -> None:
        """The parent ends in order: find another one while it is still there."""
        if self._pending() is None:
            self._search(self._board.config.on.parent_lost)

    def parent_is_lost(self) -> None:
        """The parent has lost its own."""
        steps = self._board.config.on.parent_unrooted
        if set(steps) != {"wait"}:
            self._steps, self._rounds = steps, 0
            self._fill()
            if steps[0] == "wait":
                self._queue.popleft()
                self._pause()
            else:
                self._next()

    # Moving

    def move(self, place: str, home: Neighbour | None) -> None:
        """Have another parent, without missing anything."""
        if self._upstream.link is None or self._pending() is not None or place in (self.place, self._board.place):
            return
        self.home = home
        self._connect(place, "parent", home=home.name if home is not None else "")

    def _begin_move(self, attempt: Attempt, message: Welcome) -> None:
        """The new link brings everything from where this agent is; the old one goes on until it does."""
        assert attempt.link is not None
        attempt.is_welcome = True
        self._upstream.is_moving = True
        self._upstream.cancel_relays()
        for info in message.streams:
            self._upstream.learn(info)
        self._new_path = (message.path, message.term)
        self._upstream.ask_all(attempt.link)

    def is_live(self, link: int) -> None:
        """Everything that is wanted comes on the link."""
        attempt = self.attempt_on(link)
        if attempt is not None and attempt.is_welcome:
            self._switch(attempt)
        elif link == self._upstream.link:
            self.on_adopted()

    def _switch(self, attempt: Attempt) -> None:
        board, old = self._board, self._upstream.link
        self._take(attempt)
        if old is not None:
            self._upstream.drop_link(old)
            board.close(old, "moved")
        above, term = self._new_path
        self.set_path(above, is_rooted=True, term=term, is_found=True)
        self.on_adopted()

    def path_of_attempt(self, attempt: Attempt, path: tuple[str, ...], is_rooted: bool, term: int) -> None:
        """The agent that is to be the parent is elsewhere now."""
        self._new_path = (path, term)
        if not is_rooted or self._board.config.name in path:
            self._leave(attempt, "not-rooted")

    # Time

    def tell_parent(self, info: Info) -> None:
        if self._upstream.link is not None:
            self._board.send(self._upstream.link, encode_block(self._board.infostream.encode(info, self._board.term)))

    def tick(self) -> None:
        now_ns = self._board.now_ns
        for attempt in list(self._attempts.values()):
            if now_ns >= attempt.deadline_ns and not attempt.is_welcome:
                self._leave(attempt, "silent")
        if self.retry_ns is not None and now_ns >= self.retry_ns:
            self.retry_ns = None
            self._next()
        for place in self.peering.due():
            self._connect(place, "peer")
        self._listen()

    def _listen(self) -> None:
        """A parent that says nothing is taken for dead."""
        link = self._upstream.link
        if link is None:
            return
        bytes_in = self._board.fanout.link(link).bytes_in
        if bytes_in != self._heard[0]:
            self._heard = (bytes_in, self._board.now_ns)
        elif self._board.now_ns - self._heard[1] >= self._board.config.silence_ms * NS_PER_MS:
            self.leave_parent("silent")

    def probe(self, place: str) -> None:
        if not any(each.purpose == "probe" for each in self._attempts.values()):
            self._connect(place, "probe")

    def link_closed(self, link: int) -> None:
        if (attempt := self.attempt_on(link)) is not None:
            del self._attempts[attempt.number]
            self._over(attempt)
        elif link == self._upstream.link:
            self.lost(link)

    def deadline_ns(self) -> int | None:
        found = self.peering.deadlines()
        if not found and not self._attempts:
            return self.retry_ns
        found += [each.deadline_ns for each in self._attempts.values() if not each.is_welcome]
        return min([*found, self.retry_ns] if self.retry_ns is not None else found, default=None)
