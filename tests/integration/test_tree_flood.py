"""One child of an agent sends control messages as fast as it can: the agent's other children are not affected."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from integration.filter_kit import Loop
from integration.tree_kit import Reader, agent_config, agent_here, agent_process, publish, publisher, root_config
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.net.config import ControlConfig
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import encode_frame
from penstock.net.live.link import Link, connect_link
from penstock.net.place import parse_place
from penstock.tree.core.control import TREE, Login, Unsubscribe
from waiting import wait_until

SIZE_MAX = 1024
FLOOD = encode_frame(TREE.encode(Unsubscribe(9), SIZE_MAX)) * 10_000


class Flood:
    """A subscriber that keeps unsubscribing."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.is_blocked = threading.Event()
        """Set when the agent has not accepted all data at once."""
        self.error: PenstockError | None = None

    def opened(self, link: Link, peer: Peer) -> None:
        self.link = link
        link.write(encode_frame(TREE.encode(Login("flood", "subscriber"), SIZE_MAX)))
        self._send(link)

    def _send(self, link: Link) -> None:
        if link.is_writable and not link.is_over:
            link.write(FLOOD)
            asyncio.get_running_loop().call_soon(self._send, link)
        elif not link.is_over:
            self.is_blocked.set()

    def received(self, link: Link, data: bytes) -> None:
        pass

    def writable(self, link: Link) -> None:
        self._send(link)

    def lost(self, link: Link, error: PenstockError) -> None:
        self.error = error


@contextmanager
def flood(place: str) -> Iterator[Flood]:
    made, loop = Flood(), Loop()
    host, port = parse_place(place)
    try:
        link = loop.run(
            connect_link(
                TREE,
                host,
                port,
                made,
                node="flood",
                secret=None,
                tls=None,
                config=ControlConfig(),
                counters=Counters("flood"),
            )
        )
        yield made
        loop.loop.call_soon_threadsafe(link.abort)
        wait_until(lambda: link.is_over, "the flood to end")
    finally:
        loop.close()


@pytest.mark.spec("TREE-10", "TREE-4")
def test_a_flood_of_control_messages_delays_nobody_else(tmp_path: Path) -> None:
    with (
        agent_here(root_config(tmp_path / "root")) as root,
        agent_process(agent_config("middle", root.place), tmp_path) as middle,
        agent_here(agent_config("leaf", middle.place)) as leaf,
        Reader(leaf.wait_rooted().place) as below,
        Reader(middle.place) as beside,
        publisher(root.place) as source,
        flood(middle.place) as flooding,
    ):
        below.wait_live(), beside.wait_live()
        assert flooding.is_blocked.wait(60)
        for number in range(0, 2_000, 100):
            publish(source, range(number + 1, number + 101))
            assert below.wait_for(number + 100) == beside.wait_for(number + 100) == list(range(1, number + 101))
        assert flooding.error is None
        with Reader(middle.place, since="oldest") as late:
            assert late.wait_for(2_000) == list(range(1, 2_001)), "later children are served, too"
        assert leaf.agent._core.environment.counters["upstream_lost"] == 0
        assert "parent_lost" not in below.kinds() | beside.kinds()
