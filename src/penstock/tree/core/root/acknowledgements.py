"""Acknowledgements: tells publishers up to which number their messages are stored: at once, but not for every message
of a burst.

An acknowledgement per message costs the publisher and the root more than the messages do. A publisher that was
acknowledged a moment ago gets the next acknowledgement with the messages that follow, or a little later.
"""

from penstock.base.clock import NS_PER_MS
from penstock.tree.core.children import ChildTable
from penstock.tree.core.control import Published
from penstock.tree.core.environment import Environment
from penstock.tree.core.outbox import Outbox

INTERVAL_NS = NS_PER_MS
WAIT_NS = 2 * NS_PER_MS
"""How long an acknowledgement waits for further messages."""


class Acknowledgements:
    def __init__(self, environment: Environment, children: ChildTable, outbox: Outbox) -> None:
        self._environment = environment
        self._children = children
        self._outbox = outbox
        self._links: dict[int, int] = {}
        """By publisher id: the link of the publisher."""
        self._sent_ns: dict[int, int] = {}
        """By link: the time of the last acknowledgement."""
        self._owed: dict[int, int] = {}
        """By link: the number that is not acknowledged yet."""
        self._degraded: set[int] = set()
        """Links whose next acknowledgement covers messages without a copy at the standby."""
        self._due_ns = 0
        """When the oldest of `_owed` is due."""

    def add(self, publisher_id: int, link: int) -> None:
        self._links[publisher_id] = link

    def kept(self, publisher_id: int, through: int, *, is_degraded: bool = False) -> None:
        """The publisher's messages are stored up to this number of its own."""
        link, now_ns = self._links.get(publisher_id), self._environment.now_ns
        if link is None:
            return
        if is_degraded:
            self._degraded.add(link)
        sent_ns = self._sent_ns.get(link)
        if sent_ns is None or now_ns - sent_ns >= INTERVAL_NS:
            self._owed.pop(link, None)
            self._send(link, through)
        else:
            self._due_ns = self._due_ns if self._owed else now_ns + WAIT_NS
            self._owed[link] = through

    def remove(self, link: int) -> None:
        self._sent_ns.pop(link, None)
        self._owed.pop(link, None)
        self._degraded.discard(link)
        self._links = {publisher_id: each for publisher_id, each in self._links.items() if each != link}

    def deadline_ns(self) -> int | None:
        return self._due_ns if self._owed else None

    def tick(self) -> None:
        if self._owed and self._environment.now_ns >= self._due_ns:
            owed, self._owed = self._owed, {}
            for link, through in owed.items():
                self._send(link, through)

    def _send(self, link: int, through: int) -> None:
        if link in self._children:
            self._sent_ns[link] = self._environment.now_ns
            self._outbox.send(link, Published(through, is_degraded=link in self._degraded))
            self._degraded.discard(link)
