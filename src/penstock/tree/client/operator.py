"""Orders to an agent: move a child, send it home, promote a standby, revoke and restore.

give_order("127.0.0.1:7420", "move", party="leaf-1", place="127.0.0.1:7423")
"""

import asyncio
from typing import Any

from penstock.base.clock import random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import ConnectionLostError, PenstockError, RemoteProtocolError
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.net.guard import Guard
from penstock.net.live.link import Link, connect_link
from penstock.net.place import parse_place
from penstock.tree.client.core.tree_client import error_of
from penstock.tree.client.core_runner import LINK
from penstock.tree.core.control import MESSAGE_SIZE_MAX, TREE, Action, Login, Order, Ordered, Refused

ANSWER_SECONDS = 5.0


def give_order(
    agent: str,
    action: Action,
    *,
    name: str = "",
    tree: str = "tree",
    token: str = "",
    guard: Guard | None = None,
    **order: Any,
) -> None:
    """Returns when the agent has accepted the order; a PenstockError has the reason of a refusal. `order`: party,
    place, topics, reason."""
    asyncio.run(order_agent(agent, Order(1, action, **order), name=name, tree=tree, token=token, guard=guard))


async def order_agent(
    agent: str, order: Order, *, name: str = "", tree: str = "tree", token: str = "", guard: Guard | None = None
) -> None:
    """The same in an asyncio loop."""
    name = name or f"operator-{random_bytes(6).hex()}"
    guard = guard or Guard()
    host, port = parse_place(agent)
    ordering = _Ordering([Login(name, "operator", tree, token), order])
    link = await connect_link(
        TREE,
        host,
        port,
        ordering,
        node=name,
        secret=guard.secret,
        tls=guard.tls_for(host),
        config=LINK,
        counters=Counters("tree.operator"),
    )
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await ordering.answer
    except TimeoutError:
        raise ConnectionLostError("the agent does not answer", where=agent) from None
    finally:
        link.close()
        await link.over


class _Ordering:
    """The user of the link."""

    def __init__(self, words: list[Login | Order]) -> None:
        self.answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._words = words
        self._decoder = FrameDecoder(MESSAGE_SIZE_MAX)

    def opened(self, link: Link, peer: Peer) -> None:
        for each in self._words:
            link.write(encode_frame(TREE.encode(each, MESSAGE_SIZE_MAX)))

    def received(self, link: Link, data: bytes) -> None:
        try:
            for frame in self._decoder.feed(data):
                match TREE.decode(frame):
                    case Ordered():
                        self._done(None)
                    case Refused() as refusal:
                        self._done(error_of(refusal))
                    case other:
                        raise RemoteProtocolError(f"the agent answers with {type(other).__name__}")
        except PenstockError as error:
            self._done(error)

    def writable(self, link: Link) -> None:
        """An operator has no further messages to send."""

    def lost(self, link: Link, error: PenstockError) -> None:
        self._done(error)

    def _done(self, error: PenstockError | None) -> None:
        if not self.answer.done():
            if error is None:
                self.answer.set_result(None)
            else:
                self.answer.set_exception(error)
