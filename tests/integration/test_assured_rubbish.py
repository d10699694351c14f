"""Clients of a message router that have logged in and then send rubbish: their own links end, and the other clients
continue."""

import asyncio
import random
from pathlib import Path

from integration.assured_kit import client_of, router_config, router_here
from penstock.assured.config import EndpointConfig
from penstock.assured.wire._layout import KIND_CONTROL
from penstock.assured.wire.control import (
    ASSURED,
    MESSAGE_SIZE_MAX,
    Begin,
    CloseFlow,
    ClosePublisher,
    Commit,
    CreateEndpoint,
    DeleteEndpoint,
    EmptyEndpoint,
    ListEndpoints,
    Login,
    Message,
    OpenFlow,
    OpenPublisher,
    RenewToken,
    Rollback,
    Switch,
    Welcome,
)
from penstock.assured.wire.frames import (
    FrameSplitter,
    Published,
    encode_acknowledge,
    encode_credit,
    encode_publish,
    encode_settle,
)
from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.net.config import ControlConfig
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import encode_frame
from penstock.net.live.link import Link, connect_link
from penstock.net.place import parse_place
from waiting import PATIENCE_SECONDS

ROUNDS = 150


class Stranger:
    """Sends any bytes, and records whether the router has answered, or ended the link."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.has_opened = asyncio.Event()
        self.splitter = FrameSplitter()
        self.answers = 0

    def opened(self, link: Link, peer: Peer) -> None:
        self.link = link
        self.has_opened.set()

    def received(self, link: Link, data: bytes) -> None:
        self.answers += len(self.splitter.feed(data))

    def writable(self, link: Link) -> None:
        pass

    def lost(self, link: Link, error: PenstockError) -> None:
        self.has_opened.set()


def said(message: Message) -> bytes:
    return encode_frame(ASSURED.encode(message, MESSAGE_SIZE_MAX))


def some_frame(chance: random.Random) -> bytes:
    number, handle = chance.randrange(1, 2**32), chance.choice((0, 1, 2, 3, 2**32 - 1))
    ids = sorted({chance.randrange(2**41) for _ in range(4)})
    made = chance.choice((
        lambda: encode_publish(
            handle,
            chance.choice((1, 2, 5_000, 2**62)),
            [Published(chance.choice((b"orders.new", b"", b"a..b", b"\xff")), bytes(9))] * chance.randint(1, 5),
            transaction=chance.choice((0, 1, 7)),
        ),
        lambda: encode_settle(handle, [(each, each, chance.randint(1, 255)) for each in ids]),
        lambda: encode_settle(handle, [(0, 2**64 - 1, chance.choice((1, 2, 3)))], transaction=chance.choice((0, 1))),
        lambda: encode_credit(handle, chance.choice((0, 5, 2**64 - 1))),
        lambda: encode_acknowledge(handle, [(1, 2, 3)]),
        lambda: said(OpenPublisher(number, chance.choice((0, 5, 2**64 - 1)))),
        lambda: said(OpenFlow(number, chance.choice(("orders", "dead", "none")), chance.choice((0, 10, 2**32 - 1)))),
        lambda: said(chance.choice((ClosePublisher, CloseFlow))(number, handle)),
        lambda: said(chance.choice((Begin, Commit, Rollback))(number, handle, chance.choice((0, 1, 2, 2**32 - 1)))),
        lambda: said(CreateEndpoint(number, EndpointConfig(name=f"e{chance.randrange(9)}", dead_to="e9"))),
        lambda: said(chance.choice((DeleteEndpoint, EmptyEndpoint))(number, f"e{chance.randrange(10)}")),
        lambda: said(ListEndpoints(number, "")),
        lambda: said(RenewToken("x")),
        lambda: said(Switch(number, True)),
        lambda: said(Login("again")),
        lambda: said(Welcome("r", "active", 9)),
        lambda: encode_frame(bytes([KIND_CONTROL]) + chance.randbytes(5)),
    ))()  # fmt: skip
    frame = bytearray(made)
    if chance.random() < 0.3:
        for _ in range(chance.randint(1, 4)):
            frame[chance.randrange(4, len(frame))] = chance.randrange(256)
    return bytes(frame)


async def torment(place: str, seed: int) -> int:
    """Number of the router's answers."""
    chance = random.Random(seed)
    host, port = parse_place(place)
    stranger = Stranger()
    name = f"stranger-{seed}"
    link = await connect_link(
        ASSURED,
        host,
        port,
        stranger,
        node=name,
        secret=None,
        tls=None,
        config=ControlConfig(),
        counters=Counters("test"),
    )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stranger.has_opened.wait()
        link.write(said(Login(name)))
        link.write(said(OpenPublisher(1, 1 + seed)) + said(OpenFlow(2, "orders", 100)))
        while stranger.answers < 3 and not link.is_over:
            await asyncio.sleep(0.001)
        for _ in range(chance.randint(1, 30)):
            link.write(some_frame(chance))
            if link.is_over:
                break
            await asyncio.sleep(0)
        link.close()
        await link.over
    return stranger.answers


def test_whatever_clients_say_the_router_serves_the_others(tmp_path: Path, soak: bool) -> None:
    async def all_of_them(place: str) -> int:
        return sum([await torment(place, seed) for seed in range(20 * ROUNDS if soak else ROUNDS)])

    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"before", timeout=PATIENCE_SECONDS) == "stored"
            assert asyncio.run(all_of_them(router.place)) >= 3 * ROUNDS
            assert publisher.publish("orders.new", b"after", timeout=PATIENCE_SECONDS) in ("stored", "unmatched")
        found = {each.endpoint.name: each for each in client.endpoints()}
        assert all(each.unsettled == 0 and each.flows == 0 for each in found.values())
    with router_here(router_config(tmp_path)) as router, client_of(router.place) as client:
        again = {each.endpoint.name: each.messages for each in client.endpoints()}
        assert again == {name: each.messages for name, each in found.items()}, "the log says the same"
