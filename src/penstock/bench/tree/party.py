"""Peers of a distribution tree with minimum cost for the bench: they speak the protocol, send blocks encoded in
advance, and only scan received data.
"""

import asyncio
import os
import select
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import uvloop

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.bench.transports import PATIENCE_SECONDS, check
from penstock.net.config import ControlConfig
from penstock.net.core.control import Ping, SessionMessage, encode_session
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.net.live.link import Link, connect_link
from penstock.net.place import parse_place
from penstock.tree.core.control import (
    MESSAGE_SIZE_MAX,
    TREE,
    Fetch,
    Fetched,
    Held,
    Login,
    Message,
    Position,
    Published,
    Refused,
    Role,
    Subscribe,
    Want,
    Welcome,
)
from penstock.tree.core.infostream import id_of
from penstock.tree.core.kernel._frame import BLOCK_HEADER_SIZE, FRAME_LENGTH_SIZE, FRAME_SIZE_MAX, KIND_CONTROL

TREE_NAME = "bench"
STREAM = "md"
TOPICS = ("md.>",)
PING_SECONDS = 1.0
FETCH_SIZE = 1 << 20
PACKETS_AT = BLOCK_HEADER_SIZE - FRAME_LENGTH_SIZE
LINK = ControlConfig(message_size_max=MESSAGE_SIZE_MAX, handshake_ms=30_000)

Taken = Callable[[bytes], None]


def run_party(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


class BareParty:
    """One link to an agent; `taken` receives the packets of each block."""

    def __init__(self, name: str, role: Role, taken: Taken | None = None) -> None:
        self.name = name
        self.role = role
        self._taken = taken
        self._decoder = FrameDecoder(FRAME_SIZE_MAX)
        self._answers: asyncio.Queue[Message | PenstockError] = asyncio.Queue()
        self._room = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.through = 0
        """For a publisher: the last number that the root has stored."""

    async def connect(self, place: str) -> Welcome:
        host, port = parse_place(place)
        self.link = await connect_link(
            TREE,
            host,
            port,
            self,
            node=self.name,
            secret=None,
            tls=None,
            config=LINK,
            counters=Counters("bench"),
            number=1,
        )
        self._say(Login(self.name, self.role, TREE_NAME, publisher_id=id_of(self.name)))
        welcome: Welcome = await self._answer(Welcome)
        self._tasks = [asyncio.create_task(self._ping())]
        return welcome

    async def subscribe(self, topics: Sequence[str] = TOPICS, where: str = "", after: Position | None = None) -> None:
        """Subscribe, and return when the subscription is live."""
        self._say(Subscribe(1, STREAM, (Want(tuple(topics), where),), after or Position()))
        held = await self._answer(Held)
        is_live = held.is_live
        while not is_live:
            self._say(Fetch(1, FETCH_SIZE))
            is_live = (await self._answer(Fetched)).is_live

    async def write(self, blocks: bytes) -> None:
        """Write when the connection accepts data."""
        while not self.link.is_writable:
            self._room.clear()
            await self._room.wait()
        self.link.write(blocks)

    def write_now(self, block: bytes) -> None:
        """Write in the calling thread; call without_pings() first, because no other thread may write."""
        socket = self.link.transport.get_extra_info("socket").fileno()
        left = memoryview(block)
        while left:
            try:
                left = left[os.write(socket, left) :]
            except BlockingIOError:
                select.select([], [socket], [], PATIENCE_SECONDS)

    def without_pings(self) -> None:
        """Stop pings: published data shows that the link is alive."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self.link.abort()
        await self.link.over

    def _say(self, message: Message) -> None:
        self.link.write(encode_frame(TREE.encode(message, MESSAGE_SIZE_MAX)))

    async def _answer(self, kind: type[Any]) -> Any:
        while True:
            answer = await asyncio.wait_for(self._answers.get(), PATIENCE_SECONDS)
            if isinstance(answer, PenstockError):
                raise answer
            check(not isinstance(answer, Refused), f"the agent refuses: {answer}")
            if isinstance(answer, kind):
                return answer

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_SECONDS)
            self.link.write(encode_frame(encode_session(Ping(time.monotonic_ns()))))

    # Callbacks of the link

    def opened(self, link: Link, peer: Peer) -> None:
        pass

    def received(self, link: Link, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if frame[0] < KIND_CONTROL:
                if self._taken is not None:
                    self._taken(frame[PACKETS_AT:])
                continue
            message = TREE.decode(frame)
            if isinstance(message, Published):
                self.through = message.through
            elif not isinstance(message, SessionMessage):
                self._answers.put_nowait(message)

    def writable(self, link: Link) -> None:
        self._room.set()

    def lost(self, link: Link, error: PenstockError) -> None:
        self._answers.put_nowait(error)
