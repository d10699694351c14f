"""A publisher's core: its messages, numbered, at the root once each, however often the way there is lost. No I/O.

Messages are kept until the root says that it has them, and some longer: a standby that became the root may lack the
last of them. Every root knows how far it is by the publisher's own numbers, and drops what comes again.
"""

from collections import deque
from collections.abc import Sequence
from typing import Annotated

import msgspec

from penstock.base.clock import Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.tree.client.core.events import (
    Accepted,
    Begin,
    BlockReceived,
    Instruction,
    Receipt,
    Received,
    SayBlock,
    SharedEvent,
)
from penstock.tree.client.core.party import Party, PartyConfig
from penstock.tree.core.control import Login, Message, Published, StreamInfo, Welcome
from penstock.tree.core.events import Connected, ConnectFailed, LinkClosed
from penstock.tree.core.infostream import Info, StreamDefined

BLOCK_SIZE = 64 * 1024


class PublisherConfig(PartyConfig, frozen=True, kw_only=True):
    publisher_id: Annotated[int, msgspec.Meta(ge=1)]
    """In whose numbering the messages are: one that goes on after a restart has the same."""

    confirmed_kept: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 16_384
    """Messages that the root has, kept in case that it is lost."""


class Publisher(Party):
    """Messages are given with publish(), after the first Welcome, which says which number comes next."""

    role = "publisher"

    def __init__(self, config: PublisherConfig, randomness: Randomness, counters: Counters, *, token: str = "") -> None:
        super().__init__(config, randomness, counters, token=token)
        self.accepted = 0
        self.degraded = 0
        """Messages of acknowledgements that said so."""
        """The root has everything up to this number."""
        self.streams: dict[int, StreamInfo] = {}
        self._publisher = config
        self._kept: deque[bytes] = deque()
        self._first = 0  # the number of the first of them; 0: it is not known yet
        self._sent = 0  # on the link in use

    @property
    def next_number(self) -> int:
        """Of the next message; 0 while no agent has said how far it is."""
        return self._first + len(self._kept)

    @property
    def unconfirmed(self) -> int:
        return max(self.next_number - 1 - self.accepted, 0) if self._first else 0

    def publish(self, packets: Sequence[bytes]) -> list[Instruction]:
        """The next messages, one packet each, numbered from next_number on."""
        self._kept.extend(packets)
        self._send()
        return self._take()

    def handle(self, event: SharedEvent, now_ns: int) -> list[Instruction]:
        match event:
            case Begin() | Connected() | ConnectFailed() | LinkClosed() | Received() | BlockReceived() | Tick():
                self._handle(event, now_ns)
            case _:
                refuse(self, event)
        if self.link and self._welcomed is not None:
            self._use_next(now_ns)
            self._go_on()
        return self._take()

    def _login(self) -> Login:
        config = self._config
        return Login(
            config.name,
            "publisher",
            config.tree,
            self._token,
            home=self._home,
            publisher_id=self._publisher.publisher_id,
        )

    def _begin_on(self, link: int, welcome: Welcome) -> None:
        for info in welcome.streams:
            self.streams[info.number] = info
        if link == self.link:
            self._go_on()

    def _go_on(self) -> None:
        """With whom is the root now, or leads to it."""
        assert self.welcome is not None
        through = self.welcome.published_through
        if not self._first:
            self._first = through + 1
        if through + 1 < self._first:  # acknowledged by a root that is lost, and not kept here any more
            self._out.append(Receipt("", "diverged", through + 1, self._first - 1))
            through = self._first - 1
        self._sent = min(through, self.next_number - 1)
        self._confirm(through)
        self._send()

    def _left(self, link: int) -> None:
        """What it was sent is sent again to the next one, as far as that does not have it."""

    def _said(self, link: int, message: Message) -> None:
        if isinstance(message, Published):
            if link == self.link:
                if message.is_degraded:
                    self.degraded += max(0, min(message.through, self.next_number - 1) - self.accepted)
                self._confirm(message.through)
        else:
            self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)

    def _told(self, link: int, info: Info) -> None:
        if isinstance(info, StreamDefined):
            self.streams[info.number] = StreamInfo(info.number, info.name, info.topics)

    def _confirm(self, through: int) -> None:
        through = min(through, self.next_number - 1)
        if through != self.accepted:
            self.accepted = through
            self._out.append(Accepted(through))
        while self._kept and self._first <= through - self._publisher.confirmed_kept:
            self._kept.popleft()
            self._first += 1

    def _send(self) -> None:
        if not self.link or not self._first:
            return
        part: list[bytes] = []
        size = 0
        for at in range(self._sent + 1 - self._first, len(self._kept)):
            packet = self._kept[at]
            if part and size + len(packet) > BLOCK_SIZE:
                self._out.append(SayBlock(self.link, b"".join(part)))
                part, size = [], 0
            part.append(packet)
            size += len(packet)
        if part:
            self._out.append(SayBlock(self.link, b"".join(part)))
        self._sent = self.next_number - 1
