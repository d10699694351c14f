"""ParentSelection: finds an agent's parent, keeps it, and replaces it (TREE-4, 7, 8).

When the parent is lost, the administrator's table says which places to try, in which order. The agent at a place
becomes the parent if it is rooted, its term is not older than the known one, and this agent is not above it. So no
cycle arises from what is known; a cycle that arises from outdated knowledge ends as soon as the paths are passed on,
because an agent that finds itself in its parent's path leaves. An agent whose parent is not rooted waits, or looks
elsewhere, as the table says; below another than the configured parent, it also tries the configured one. A move opens
the new link before it closes the old one.
"""

from collections import deque
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from penstock.base.backoff import DOUBLINGS_MAX, pause_ns
from penstock.base.clock import NS_PER_MS, Randomness
from penstock.tree.config import Step
from penstock.tree.core.control import Login, Refused, RenewToken, Role, Welcome
from penstock.tree.core.environment import Environment
from penstock.tree.core.events import Connect
from penstock.tree.core.infostream import Info, Neighbour, ParentFound, ParentLost, Path
from penstock.tree.core.kernel._fanout import Brings, Fanout, LinkClass
from penstock.tree.core.membership import Membership
from penstock.tree.core.outbox import Outbox
from penstock.tree.core.upstream import RelayEnded, StreamLearned, Upstream

PROBE_HEARTBEATS = 10
"""Heartbeats between two checks of a root whether its standby has taken over."""

Purpose: TypeAlias = Literal["parent", "peer", "probe"]


class ConnectionAttempt(msgspec.Struct):
    """A link to another agent that is being opened."""

    number: int
    place: str
    purpose: Purpose
    deadline_ns: int
    home: str = ""
    link: int | None = None
    name: str = ""
    is_welcome: bool = False
    """True if the attempt waits only until everything wanted is live on its link."""


# Events for the other parts


class ParentReady(NamedTuple):
    """The parent's link brings everything live, or a search or move is over: continue the work that waited for it."""


class PeerConnected(NamedTuple):
    link: int
    name: str
    place: str
    welcome: Welcome


class PeerUnreachable(NamedTuple):
    place: str


class HigherTermSeen(NamedTuple):
    """This root was replaced: the agent at `place` knows a higher term."""

    term: int
    place: str


ParentEvent: TypeAlias = ParentReady | PeerConnected | PeerUnreachable | HigherTermSeen | StreamLearned | RelayEnded


class ParentSelection:
    """Public methods return the events for the other parts, in order."""

    def __init__(
        self,
        environment: Environment,
        fanout: Fanout,
        membership: Membership,
        outbox: Outbox,
        upstream: Upstream,
        randomness: Randomness,
    ) -> None:
        self._environment = environment
        self._fanout = fanout
        self._membership = membership
        self._outbox = outbox
        self._upstream = upstream
        self._randomness = randomness
        self._events: list[ParentEvent] = []
        self._attempts: dict[int, ConnectionAttempt] = {}
        self._number = 0
        self._steps: tuple[Step, ...] = ()
        """The table of the present search; empty: no search."""
        self._queue: deque[str | None] = deque()
        """Places to try; None is a pause."""
        self._rounds = 0
        self._retry_ns: int | None = None
        self._heard = (0, 0)
        """Number of bytes received from the parent, and the time of the last change."""
        self._next_path: tuple[tuple[str, ...], int] = ((), 0)
        """Path and term of the agent that is about to be the parent."""
        self.place = ""
        """The place of the parent, or of the lost one."""
        self.home: Neighbour | None = None
        """The parent to return to after a move."""
        self.alternates: tuple[Neighbour, ...] = ()
        """Siblings of the parent, as reported by the parent."""
        self.lost_ns = 0
        self.token = ""
        """This agent's own token, for the agents above."""

    def _take_events(self) -> list[ParentEvent]:
        taken, self._events = self._events, []
        return taken

    # Search

    def start(self) -> None:
        config = self._environment.config
        self.place = config.parent
        self.lost_ns = self._environment.now_ns
        if config.parent and self._membership.role != "root":
            self._search(("parent", *config.on.parent_lost))

    def _search(self, steps: tuple[Step, ...]) -> None:
        self._steps = steps
        self._rounds = 0
        self._list_candidates()
        self._try_next()

    def _list_candidates(self) -> None:
        config, membership = self._environment.config, self._membership
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
        places += [config.parent, self.place]  # the configured parent may be below this agent by now
        if self.place == membership.root_place:
            places.append(membership.standby_place or None)
        self._queue = deque(dict.fromkeys(place for place in places if place != membership.place))

    @property
    def _is_searching(self) -> bool:
        return bool(self._steps)

    def _end_search(self) -> None:
        self._steps, self._retry_ns = (), None

    def _pending(self) -> ConnectionAttempt | None:
        return next((each for each in self._attempts.values() if each.purpose == "parent"), None)

    def _try_next(self) -> None:
        """Try the next place, unless an attempt is under way; or pause."""
        if not self._is_searching or self._pending() is not None:
            return
        if not self._queue:
            self._rounds += 1
            self._list_candidates()
            self._pause()
            return
        place = self._queue.popleft()
        if place is None:
            self._pause()
        elif place == self.place and self._upstream.link is not None:
            self._try_next()
        else:
            self.connect(place, "parent")

    def _pause(self) -> None:
        wait_ns = pause_ns(self._environment.config.backoff, self._rounds + 1, self._randomness)
        self._retry_ns = self._environment.now_ns + wait_ns

    # Attempts

    def connect(self, place: str, purpose: Purpose, home: str = "") -> None:
        self._number += 1
        deadline_ns = self._environment.now_ns + 2 * self._environment.config.silence_ms * NS_PER_MS
        self._attempts[self._number] = ConnectionAttempt(self._number, place, purpose, deadline_ns, home)
        self._outbox.instruct(Connect(self._number, place))

    def probe(self, place: str) -> None:
        """Find out whether the agent at this place knows a higher term."""
        if not any(each.purpose == "probe" for each in self._attempts.values()):
            self.connect(place, "probe")

    def attempt_on(self, link: int) -> ConnectionAttempt | None:
        return next((each for each in self._attempts.values() if each.link == link), None)

    def connected(self, number: int, link: int, name: str) -> None:
        attempt = self._attempts.get(number)
        if attempt is None:
            self._outbox.close(link, "late")
            return
        attempt.link, attempt.name = link, name
        self._fanout.open_link(link, brings=Brings.PACKETS | Brings.INFO, cls=LinkClass.LOSSLESS)
        config, membership = self._environment.config, self._membership
        role: Role = "standby" if membership.role == "standby" else "agent"
        if attempt.purpose == "peer":
            role = "peer"
        place, home, term = membership.place, attempt.home, membership.term
        self._outbox.send(link, Login(config.name, role, config.tree, self.token, place, home, term=term))

    def renew(self, token: str, peers: list[int]) -> None:
        """Show a newer token to the parent, to the agents that are being tried, and on these links to peers."""
        self.token = token
        attempted = (each.link for each in self._attempts.values())
        for link in filter(None, (self._upstream.link, *attempted, *peers)):
            self._outbox.send(link, RenewToken(token))

    def failed(self, number: int, why: str) -> list[ParentEvent]:
        attempt = self._attempts.get(number)
        if attempt is not None:
            self._reject(attempt, why)
        return self._take_events()

    def refused(self, attempt: ConnectionAttempt, message: Refused) -> list[ParentEvent]:
        if message.place and message.code in ("standby", "fenced", "not-root", "limit"):
            self._queue.appendleft(message.place)
        self._abandon(attempt, message.code, f"{message.reason} [{message.code}]")
        return self._take_events()

    def welcome(self, attempt: ConnectionAttempt, message: Welcome) -> list[ParentEvent]:
        membership, name = self._membership, self._environment.config.name
        if message.tree != self._environment.config.tree:
            self._abandon(attempt, "tree")
        elif message.term > membership.term and membership.role == "root":
            self._abandon(attempt, "fenced")
            self._events.append(HigherTermSeen(message.term, attempt.place))
        elif attempt.purpose == "probe":
            self._abandon(attempt, "probe")
        elif attempt.purpose == "peer":
            del self._attempts[attempt.number]
            assert attempt.link is not None
            self._events.append(PeerConnected(attempt.link, attempt.name, attempt.place, message))
        elif name in message.path or not message.is_rooted or message.term < membership.term:
            cause = "cycle" if name in message.path else "not-rooted"
            self._environment.counters.add("requests_refused", cause=cause)
            self._abandon(attempt, "not-rooted")
        elif self._upstream.link is None:
            self._adopt(attempt, message)
        else:
            self._begin_move(attempt, message)
        return self._take_events()

    def _abandon(self, attempt: ConnectionAttempt, cause: str, why: str = "") -> None:
        """Close the attempt's link, and go on with the next place."""
        if attempt.link is not None:
            self._outbox.close(attempt.link, cause)
        self._reject(attempt, why or cause)

    def _reject(self, attempt: ConnectionAttempt, why: str) -> None:
        if attempt.purpose == "parent":
            self._membership.reject(attempt.place, why)
        self._end_attempt(attempt)

    def _end_attempt(self, attempt: ConnectionAttempt) -> None:
        del self._attempts[attempt.number]
        if attempt.link is not None:
            self._events += self._upstream.drop_link(attempt.link)
        if attempt.purpose == "peer":
            self._events.append(PeerUnreachable(attempt.place))
        elif attempt.purpose == "parent":
            self._upstream.cancel_move()
            if self._upstream.link is None or self._is_searching:
                self._try_next()
            self._events.append(ParentReady())

    # The parent

    def _use(self, attempt: ConnectionAttempt) -> int:
        """Make the agent of this attempt the parent. Return its link."""
        del self._attempts[attempt.number]
        assert attempt.link is not None
        self._upstream.use_parent(attempt.link)
        self.place = attempt.place
        self._membership.adopt(attempt.name)
        self._environment.accounts.begin(attempt.link, attempt.name, "parent")
        self._end_search()
        self._heard = (0, self._environment.now_ns)
        return attempt.link

    def _adopt(self, attempt: ConnectionAttempt, message: Welcome) -> None:
        link = self._use(attempt)
        self._set_path(message.path, is_rooted=True, term=message.term, is_found=True)
        for info in message.streams:
            self._events += self._upstream.learn(info)
        self._upstream.ask_all(link)
        self._events.append(ParentReady())

    def set_path(self, above: tuple[str, ...], *, is_rooted: bool, term: int) -> list[ParentEvent]:
        """The parent's path. If this agent is in it, the parent is left."""
        self._set_path(above, is_rooted=is_rooted, term=term)
        return self._take_events()

    def _set_path(self, above: tuple[str, ...], *, is_rooted: bool, term: int, is_found: bool = False) -> None:
        membership, name = self._membership, self._environment.config.name
        if name in above:
            self._environment.counters.add("requests_refused", cause="cycle")
            self._leave_parent("cycle")
            return
        is_new = membership.set_path(above, is_rooted=is_rooted, term=term)
        path, term = membership.path, membership.term
        if is_found:
            self._outbox.inform(ParentFound(name, path, membership.parent, is_rooted, term))
        elif is_new:
            self._outbox.inform(Path(name, path, is_rooted, term))
        if is_rooted and self._upstream.link is not None and not self._upstream.is_moving:
            self._end_search()
        elif not is_rooted and not self._is_searching and self.place != self._environment.config.parent:
            self._look_home()
        self._outbox.report_membership()

    def _look_home(self) -> None:
        """The parent is not rooted, and not the configured one: the search of an agent above may lead only to agents
        below this one, and then all of them would wait for each other. Configured parents make no cycle. The pauses
        are the longest ones, because the parent is probably rooted again soon."""
        self._steps, self._rounds = ("wait",), DOUBLINGS_MAX
        self._list_candidates()
        self._queue.popleft()
        self._pause()

    def _leave_parent(self, why: str) -> None:
        link = self._upstream.link
        if link is not None:
            self._outbox.close(link, why)
            self._lose_parent(link)

    def _lose_parent(self, link: int) -> None:
        """The parent's link is closed: tell the children, and look for another parent."""
        membership, name = self._membership, self._environment.config.name
        self._events += self._upstream.drop_link(link)
        self._upstream.use_parent(None)
        self.lost_ns = self._environment.now_ns
        lost = membership.lose_parent()
        self._environment.counters.add("upstream_lost")
        self._outbox.inform(ParentLost(name, lost, membership.term))
        self._outbox.inform(Path(name, membership.path, False, membership.term))
        self._outbox.report_membership()
        moving = self._pending()
        if moving is not None and moving.is_welcome:
            self._switch(moving)
        else:
            self._search(self._environment.config.on.parent_lost)

    def link_closed(self, link: int) -> list[ParentEvent]:
        if (attempt := self.attempt_on(link)) is not None:
            self._end_attempt(attempt)
        elif link == self._upstream.link:
            self._lose_parent(link)
        return self._take_events()

    def give_up(self) -> list[ParentEvent]:
        """This agent becomes the root, and needs no parent."""
        for attempt in [each for each in self._attempts.values() if each.purpose == "parent"]:
            del self._attempts[attempt.number]
            if attempt.link is not None:
                self._outbox.close(attempt.link, "promoted")
        link = self._upstream.link
        self._upstream.use_parent(None)
        if link is not None:
            self._events += self._upstream.drop_link(link)
            self._outbox.close(link, "promoted")
        self._end_search()
        return self._take_events()

    def set_alternates(self, alternates: tuple[Neighbour, ...]) -> None:
        self.alternates = alternates

    def parent_stops(self) -> None:
        """The parent shuts down: find another one while it is still there."""
        if self._pending() is None:
            self._search(self._environment.config.on.parent_lost)

    def parent_lost_its_own(self) -> None:
        steps = self._environment.config.on.parent_unrooted
        if set(steps) == {"wait"}:
            return
        self._steps, self._rounds = steps, 0
        self._list_candidates()
        if steps[0] == "wait":
            self._queue.popleft()
            self._pause()
        else:
            self._try_next()

    def inform_parent(self, info: Info) -> None:
        if self._upstream.link is not None:
            self._outbox.inform_parent(self._upstream.link, info)

    # Moves

    def move(self, place: str, home: Neighbour | None) -> None:
        """Change to another parent, without missing anything."""
        is_there = place in (self.place, self._membership.place)
        if self._upstream.link is None or self._pending() is not None or is_there:
            return
        self.home = home
        self.connect(place, "parent", home=home.name if home is not None else "")

    def return_home(self) -> None:
        if self.home is not None:
            self.move(self.home.place, None)

    def _begin_move(self, attempt: ConnectionAttempt, message: Welcome) -> None:
        """The new link brings everything from this agent's position on; until then the old link stays in use."""
        assert attempt.link is not None
        attempt.is_welcome = True
        self._events += self._upstream.begin_move()
        for info in message.streams:
            self._events += self._upstream.learn(info)
        self._next_path = (message.path, message.term)
        if self._upstream.ask_all(attempt.link):
            self._switch(attempt)

    def link_complete(self, link: int) -> list[ParentEvent]:
        """Everything that is wanted comes live on the link."""
        attempt = self.attempt_on(link)
        if attempt is not None and attempt.is_welcome:
            self._switch(attempt)
        elif link == self._upstream.link:
            self._events.append(ParentReady())
        return self._take_events()

    def _switch(self, attempt: ConnectionAttempt) -> None:
        old = self._upstream.link
        self._use(attempt)
        if old is not None:
            self._events += self._upstream.drop_link(old)
            self._outbox.close(old, "moved")
        above, term = self._next_path
        self._set_path(above, is_rooted=True, term=term, is_found=True)
        self._events.append(ParentReady())

    def set_path_of_attempt(
        self, attempt: ConnectionAttempt, path: tuple[str, ...], *, is_rooted: bool, term: int
    ) -> list[ParentEvent]:
        """The path of the agent that is about to be the parent has changed."""
        self._next_path = (path, term)
        if not is_rooted or self._environment.config.name in path:
            self._abandon(attempt, "not-rooted")
        return self._take_events()

    # Time

    def tick(self) -> list[ParentEvent]:
        now_ns = self._environment.now_ns
        for attempt in list(self._attempts.values()):
            if now_ns >= attempt.deadline_ns and not attempt.is_welcome:
                self._abandon(attempt, "silent")
        if self._retry_ns is not None and now_ns >= self._retry_ns:
            self._retry_ns = None
            self._try_next()
        return self._take_events()

    def check_silence(self) -> list[ParentEvent]:
        """A parent that is silent for too long counts as dead."""
        link, now_ns = self._upstream.link, self._environment.now_ns
        if link is not None:
            bytes_in = self._fanout.link(link).bytes_in
            if bytes_in != self._heard[0]:
                self._heard = (bytes_in, now_ns)
            elif now_ns - self._heard[1] >= self._environment.config.silence_ms * NS_PER_MS:
                self._leave_parent("silent")
        return self._take_events()

    def deadlines_ns(self) -> list[int]:
        found = [each.deadline_ns for each in self._attempts.values() if not each.is_welcome]
        return [*found, self._retry_ns] if self._retry_ns is not None else found
