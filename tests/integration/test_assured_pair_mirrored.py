"""Mirroring in a live pair of message routers: mirrored data, removed data, and admitted peers (REPL-5, REPL-6,
REPL-7)."""

import asyncio
import random
import socket
from pathlib import Path

import msgspec
import pytest

from integration.assured_kit import client_of, router_config
from integration.pair_kit import ORDERS, PairOfRouters, state_of, switch_to
from integration.test_assured_pair import SYNC, counts, queue_of
from integration.test_assured_router import number_of, taken
from penstock.assured.core.pair.protocol import PAIR, Defined, Listed, Resync, Standing, StoredTo, Yielded
from penstock.assured.node_config import LivePairConfig
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError, UnreachableError
from penstock.net.config import ControlConfig
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import encode_frame
from penstock.net.live.link import Link, connect_link
from waiting import wait_until

ROUNDS = 60


def names_at(pair: PairOfRouters, which: int) -> set[str]:
    return {each.endpoint.name for each in pair.routers[which].status().endpoints}


@pytest.mark.spec("REPL-5", "REPL-6", "REPL-9")
def test_endpoints_appear_at_the_other_router_and_what_is_settled_vanishes_there(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path) as pair, client_of(*pair.places) as client:
        client.create_endpoint(queue_of("fills", "asynchronous"))
        wait_until(lambda: "fills" in names_at(pair, 1), "the new endpoint")
        with client.publisher() as publisher:
            for number in range(100):
                publisher.send("orders.new" if number % 2 else "fills.new", b"%d" % number)
            publisher.flush()
        wait_until(lambda: counts(pair, 1) == {"orders": 50, "fills": 50}, "copies")
        with client.endpoint("orders") as queue:
            messages = taken(queue, 50)
            queue.ack(messages[:30])
            wait_until(lambda: counts(pair, 1)["orders"] == 20, "settled messages to be deleted")
        altered = queue_of("fills", "asynchronous", deliveries_max=7)
        client.alter_endpoint(altered)
        wait_until(lambda: altered in [each.endpoint for each in pair.two.status().endpoints], "the change")
        client.delete_endpoint("fills")
        wait_until(lambda: "fills" not in names_at(pair, 1), "the deletion")
        pair.two.kill()
        client.create_endpoint(queue_of("late", "synchronous"))
        client.create_endpoint(queue_of("brief", "synchronous"))
        client.delete_endpoint("brief")
        pair.two.start()
        pair.wait_in_step()
        assert names_at(pair, 1) == names_at(pair, 0) == {"dead", "orders", "late"}
        pair.two.kill()
        client.delete_endpoint("late")
        pair.two.start()
        pair.wait_in_step()
        assert "late" not in names_at(pair, 1), "deleted while the other router was away"


@pytest.mark.spec("REPL-7")
def test_of_two_primaries_the_older_one_steps_down_and_nothing_synchronous_is_lost(tmp_path: Path) -> None:
    """An operator forces the other router while the link is cut. Clients of the old router get valid acknowledgements;
    when the routers are connected again, the newer epoch counts."""
    with PairOfRouters(tmp_path, degrade_after_ms=2_000) as pair, client_of(*pair.places) as client:
        with client.publisher() as publisher:
            for number in range(10):
                assert publisher.publish("orders.new", b"%d" % number) == SYNC
            pair.relay.cut()
            switch_to(pair.two, force=True)
            assert [each.status().role for each in pair.routers] == ["active", "active"]
            assert publisher.publish("orders.new", b"10") == "degraded"
            with client_of(pair.two.place) as newer, newer.publisher() as other:
                assert other.publish("orders.new", b"11") == "degraded"
                assert newer.epoch > client.epoch
            pair.relay.heal()
            pair.wait_in_step()
            assert [each.status().role for each in pair.routers] == ["standby", "active"]
            assert publisher.publish("orders.new", b"12") == SYNC
            assert client.router == "two"
        with client.endpoint("orders") as queue:
            messages = taken(queue, 12)
            assert [number_of(each) for each in messages] == [*range(10), 11, 12]
            queue.ack(messages)
        stranded = [each.values for each in pair.one.status().happenings if each.what == "stranded"]
        assert [each["messages"] for each in stranded] == [1]
        switch_to(pair.one)
        with client.endpoint("orders") as queue:
            (last,) = taken(queue, 1)
            assert (number_of(last), last.is_redelivered) == (10, True), (
                "the old router's own message is delivered late"
            )


@pytest.mark.spec("REPL-7")
def test_a_client_that_knows_a_newer_epoch_refuses_the_old_router(tmp_path: Path) -> None:
    with PairOfRouters(tmp_path, degrade_after_ms=2_000) as pair:
        pair.relay.cut()
        switch_to(pair.two, force=True)
        with client_of(pair.two.place, pair.one.place) as client, client.publisher() as publisher:
            assert publisher.publish("orders.new", b"0") == "degraded"
            assert (client.router, pair.one.status().role) == ("two", "active")
            pair.two.kill()
            with pytest.raises(UnreachableError):
                publisher.publish("orders.new", b"1", timeout=1.0)
            pair.two.start()
            pair.relay.heal()
            publisher.flush()
            assert client.router == "two"
            assert publisher.publish("orders.new", b"2") in (SYNC, "degraded")


class Stranger:
    """Connects to the pair's link under any name, and sends any bytes."""

    def __init__(self) -> None:
        self.link: Link | None = None
        self.has_ended = asyncio.Event()
        self.has_opened = asyncio.Event()

    def opened(self, link: Link, peer: Peer) -> None:
        self.link = link
        self.has_opened.set()

    def received(self, link: Link, data: bytes) -> None: ...

    def writable(self, link: Link) -> None: ...

    def lost(self, link: Link, error: Exception) -> None:
        self.has_ended.set()
        self.has_opened.set()


async def say(port: int, name: str, data: bytes) -> None:
    """Wait until the link is ended."""
    stranger = Stranger()
    await connect_link(
        PAIR, "127.0.0.1", port, stranger, node=name, secret=None, tls=None, config=ControlConfig(),
        counters=Counters("stranger"),
    )  # fmt: skip
    await stranger.has_opened.wait()
    if stranger.link is not None:
        stranger.link.write(data)
        stranger.link.close()
    await stranger.has_ended.wait()


def rubbish(randomness: random.Random) -> bytes:
    """Frames that are invalid or unexpected. Valid but false frames are not tested: the peer has the pair's secret."""
    frames = [
        PAIR.encode(Standing("one", "active", 1), 2**20),
        PAIR.encode(Standing("two", "active", 2**24 - 1), 2**20),
        PAIR.encode(Resync(1, 1, 1, 0), 2**20),
        PAIR.encode(Defined(randomness.getrandbits(32), randomness.randbytes(50)), 2**20),
        PAIR.encode(Listed(), 2**20),
        PAIR.encode(StoredTo(1, 2**63), 2**20),
        PAIR.encode(Yielded(2**24 - 1), 2**20),
        b"",
        *(bytes([kind]) + randomness.randbytes(randomness.choice([0, 3, 7, 15, 31, 200])) for kind in range(16)),
        randomness.randbytes(40),
    ]
    said = b"".join(encode_frame(each) for each in randomness.choices(frames, k=randomness.randrange(1, 12)))
    return said + randomness.choice([b"", b"\xff\xff\xff\xff", randomness.randbytes(5)])


def test_strangers_and_rubbish_on_the_link_end_and_the_pair_goes_on(tmp_path: Path) -> None:
    randomness = random.Random(7)
    with PairOfRouters(tmp_path, ORDERS) as pair, client_of(*pair.places) as client:
        port = pair.link_port
        asyncio.run(asyncio.wait_for(say(port, "somebody", encode_frame(PAIR.encode(Listed(), 2**20))), 60))
        assert state_of(pair.two) == "in step", "# a peer that is not the other router replaces no link"
        for _ in range(ROUNDS):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(randomness.randbytes(randomness.randrange(1, 300)))
        with client.publisher() as publisher:
            assert publisher.publish("orders.new", b"0") == SYNC
            for _ in range(ROUNDS):  # a peer with the other router's name replaces the link, and sends garbage
                asyncio.run(asyncio.wait_for(say(port, "one", rubbish(randomness)), 60))
            pair.wait_in_step()
            assert publisher.publish("orders.new", b"1") in (SYNC, "degraded")
        assert [each.status().role for each in pair.routers].count("active") == 1


def test_a_pair_is_configured_as_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not in the routers of its own pair"):
        router_config(tmp_path, name="three", pair=LivePairConfig(routers=("one", "two")))
    with pytest.raises(ConfigurationError, match="is not an address"):
        LivePairConfig(routers=("one", "two"), clients="nowhere")
    with pytest.raises(ConfigurationError, match="not a loopback address"):
        msgspec.convert({"routers": ["one", "two"], "link": {"host": "192.0.2.1"}}, LivePairConfig)
