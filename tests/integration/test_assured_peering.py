"""The link between the two routers of a pair, in this process: made, kept, ended for silence, made again."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificate
from integration.relay import Relay
from penstock.assured.core.pair.protocol import PeerClosed, PeerFrame, PeerOpened
from penstock.assured.live.peer_connection import LIMITS, PeerConnection
from penstock.assured.node_config import LivePairConfig, PairAccess
from penstock.assured.wire._layout import PEER_FRAME_SIZE_MAX
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.net.config import TlsConfig
from penstock.net.core.framing import encode_frame
from penstock.net.secret import write_private
from penstock.net.udp import free_ports
from waiting import PATIENCE_SECONDS

FRAME = b"\x08 a frame"


class End:
    """One router's end of the link, and the messages that it received."""

    def __init__(self, name: str, access: PairAccess, **values: Any) -> None:
        self.told: list[Any] = []
        self.counters = Counters("peering")
        config = LivePairConfig(routers=("one", "two"), link=access, **values)
        self.peering = PeerConnection(config, name, self._tell, self.counters)
        self.link = 0
        self._changed = asyncio.Event()

    def _tell(self, event: Any) -> None:
        self.told.append(event)
        match event:
            case PeerOpened(link):
                self.link = link
            case PeerClosed():
                self.link = 0
        self._changed.set()

    def frames(self) -> list[bytes]:
        return [each.data for each in self.told if isinstance(each, PeerFrame) and each.data[0] < 0x80]

    async def wait(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def refused(self) -> None:
        """Wait until a connection was refused."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.counters["connections_refused"]:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def ends(*made: End) -> AsyncIterator[None]:
    for each in made:
        await each.peering.start()
    try:
        yield
    finally:
        for each in made:
            await each.peering.close()


def test_frames_go_both_ways_under_tls_and_the_pairs_secret(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "tls", "127.0.0.1")
    tls = TlsConfig(certificate=str(certificate), private_key=str(key), ca_file=str(certificate))
    for name in ("secret", "another"):
        write_private(tmp_path / name, f"the {name} of this pair".encode())

    async def run() -> None:
        (port,) = free_ports(1)
        access = PairAccess(port=port, tls=tls, secret_file=str(tmp_path / "secret"))
        foreign = PairAccess(port=port, tls=tls, secret_file=str(tmp_path / "another"))
        one, two, stranger = End("one", access), End("two", access), End("one", foreign)
        async with ends(stranger, two):
            await two.refused()
            assert not two.told
        two = End("two", access)
        async with ends(one, two):
            await one.wait(lambda: one.link)
            await two.wait(lambda: two.link)
            one.peering.send(one.link, encode_frame(FRAME))
            two.peering.send(two.link, encode_frame(FRAME))
            await one.wait(one.frames)
            await two.wait(two.frames)
            assert one.frames() == two.frames() == [FRAME]
            one.peering.send(one.link + 1, encode_frame(FRAME))  # of another link

    asyncio.run(run())


def test_a_link_that_is_silent_or_ended_is_made_again_and_frames_that_are_too_long_end_it() -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        with Relay(port) as relay:
            one, two = End("one", PairAccess(port=relay.port), silence_ms=300), End("two", PairAccess(port=port))
            async with ends(one, two):
                await two.wait(lambda: two.link)
                await one.wait(lambda: one.link == 1)
                await asyncio.to_thread(relay.cut)
                await one.wait(lambda: not one.link)
                assert two.link == 1, "the other router has the longer timeout"
                relay.heal()
                await one.wait(lambda: one.link == 2)
                await two.wait(lambda: two.link == 2)
                two.peering.end(two.link)
                await one.wait(lambda: one.link == 3)
                await two.wait(lambda: two.link == 3)
                one.peering.send(one.link, (PEER_FRAME_SIZE_MAX + 1).to_bytes(4, "little"))
                await two.wait(lambda: two.link == 4)
                await one.wait(lambda: one.link == 4)
                two.peering.send(two.link, encode_frame(FRAME))
                await one.wait(one.frames)

    asyncio.run(run())


@pytest.mark.parametrize("name", ["one", "two"])
def test_whoever_is_called_otherwise_is_not_the_other_router(name: str) -> None:
    """On either side of the link."""

    async def run() -> None:
        (port,) = free_ports(1)
        one, two = End("one", PairAccess(port=port)), End("two", PairAccess(port=port))
        (one if name == "one" else two).peering.other = "three"
        async with ends(two, one):
            refusing = one if name == "one" else two
            await refusing.refused()
            assert not refusing.told

    asyncio.run(run())


def test_those_who_connect_and_say_nothing_do_not_keep_the_other_router_out() -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        one, two = End("one", PairAccess(port=port)), End("two", PairAccess(port=port))
        await two.peering.start()
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LIMITS.connections_max + 5)]
        async with ends(one):
            await one.wait(lambda: one.link)
            assert two.counters["connections_refused"] >= 1
        for _, writer in silent:
            writer.close()
        await two.peering.close()

    asyncio.run(run())


def test_a_certificate_authority_that_is_not_there_is_told_at_the_start(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "tls", "127.0.0.1")
    tls = TlsConfig(certificate=str(certificate), private_key=str(key), ca_file=str(tmp_path / "none.pem"))

    async def run() -> None:
        with pytest.raises(ConfigurationError, match="none"):
            End("one", PairAccess(tls=tls))

    asyncio.run(run())
