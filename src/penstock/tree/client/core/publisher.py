"""Publisher: the core of a publisher; each message reaches the root exactly once, whatever happens to links. No I/O.

Messages are kept until the root acknowledges them, and some longer, because a standby that became the root may lack the
last ones. Every root knows the publisher's last number, and drops duplicates.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from penstock.base.clock import Randomness
from penstock.base.core import Tick, refuse
from penstock.base.counters import Cause, Counters
from penstock.net.core.client_session import Begin, Connected, ConnectFailed, LinkClosed, Received, SendData
from penstock.tree.client.core.events import (
    Accepted,
    BlockReceived,
    Instruction,
    Receipt,
    SharedEvent,
)
from penstock.tree.client.core.tree_client import TreeClient, TreeClientConfig
from penstock.tree.core.control import Login, Message, Published, StreamInfo, Welcome
from penstock.tree.core.infostream import Info, StreamDefined
from penstock.tree.core.kernel._frame import ACKNOWLEDGE, KIND_PUBLISHED, encode_block

BLOCK_SIZE = 64 * 1024
HURRY = encode_block(b"", kind=KIND_PUBLISHED, leg=ACKNOWLEDGE)


class PublisherConfig(TreeClientConfig, frozen=True, kw_only=True):
    publisher_id: Annotated[int, msgspec.Meta(ge=1)]
    """Identifies the publisher's numbering; it stays the same after a restart."""

    confirmed_kept: Annotated[int, msgspec.Meta(ge=0, le=2**24)] = 16_384
    """Acknowledged messages that are kept in case the root is lost."""


class Publisher(TreeClient):
    """publish() takes messages after the first Welcome, which has the next number."""

    role = "publisher"

    def __init__(self, config: PublisherConfig, randomness: Randomness, counters: Counters, *, token: str = "") -> None:
        super().__init__(config, randomness, counters, token=token)
        self.accepted = 0
        """The root has everything up to this number."""
        self.degraded = 0
        """Messages that were acknowledged as degraded."""
        self.streams: Mapping[int, StreamInfo] = {}
        """By number; another mapping after each change."""
        self._publisher = config
        self._kept: deque[bytes] = deque()
        """Messages that the root may still need."""
        self._first = 0
        """The number of the first kept message; 0: unknown until the first Welcome."""
        self.sent = 0
        """The last number sent on the link in use."""

    @property
    def next_number(self) -> int:
        """The number of the next message; 0 before the first Welcome."""
        return self._first + len(self._kept)

    @property
    def unconfirmed(self) -> int:
        return max(self.next_number - 1 - self.accepted, 0) if self._first else 0

    def publish(self, packets: Sequence[bytes]) -> list[Instruction]:
        """The next messages, one packet each, numbered from next_number on."""
        self._kept.extend(packets)
        self._send()
        return self._take_instructions()

    def keep_sent(self, packet: bytes) -> None:
        """The next message, which the caller has sent on the link in use, after all earlier ones."""
        self._kept.append(packet)
        self.sent += 1

    def hurry(self) -> list[Instruction]:
        """Ask the root to acknowledge at once what was sent. It would do so a little later, with further messages."""
        if self.link and self.unconfirmed:
            self._out.append(SendData(self.link, HURRY))
        return self._take_instructions()

    def handle(self, event: SharedEvent, now_ns: int) -> list[Instruction]:
        match event:
            case Begin() | Connected() | ConnectFailed() | LinkClosed() | Received() | BlockReceived() | Tick():
                self._handle(event, now_ns)
            case _:
                refuse(self, event)
        if self.link and self._links.next_welcome is not None:
            self._do(self._links.use_next(now_ns))
            self._continue()
        return self._take_instructions()

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
        self.streams = {**self.streams, **{info.number: info for info in welcome.streams}}
        if link == self.link:
            self._continue()

    def _continue(self) -> None:
        """Continue on the link in use after the last message that the root has."""
        assert self.welcome is not None
        through = self.welcome.published_through
        if not self._first:
            self._first = through + 1
        if through + 1 < self._first:  # acknowledged by a root that is lost, and not kept here any more
            self._out.append(Receipt("", "diverged", through + 1, self._first - 1))
            through = self._first - 1
        self.sent = min(through, self.next_number - 1)
        self._confirm(through)
        self._send()

    def _link_left(self, link: int) -> None:
        """Messages sent on the link are sent again on the next one, if the root does not have them."""

    def _message_received(self, link: int, message: Message) -> None:
        if isinstance(message, Published):
            if link == self.link and message.through >= self.accepted:  # else another one has overtaken it
                if message.is_degraded:
                    self.degraded += max(0, min(message.through, self.next_number - 1) - self.accepted)
                self._confirm(message.through)
        else:
            self._counters.add("messages_skipped", cause=Cause.UNEXPECTED)

    def _informed(self, link: int, info: Info) -> None:
        if isinstance(info, StreamDefined):
            self.streams = {**self.streams, info.number: StreamInfo(info.number, info.name, info.topics)}

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
        for at in range(self.sent + 1 - self._first, len(self._kept)):
            packet = self._kept[at]
            if part and size + len(packet) > BLOCK_SIZE:
                self._send_block(part)
                part, size = [], 0
            part.append(packet)
            size += len(packet)
        if part:
            self._send_block(part)
        self.sent = self.next_number - 1

    def _send_block(self, packets: list[bytes]) -> None:
        self._out.append(SendData(self.link, encode_block(b"".join(packets), kind=KIND_PUBLISHED)))
