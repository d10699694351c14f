"""The lease on real sockets: three voters, one holder, and strangers who get nothing (REPL-14)."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from penstock.assured.core.lease.protocol import LEASE as PROTOCOL
from penstock.assured.core.lease.protocol import Ask, Granted, LeaseConfig, LeaseTerms, Memory, Message
from penstock.assured.live.lease_links import LeaseLinks, apart_ms
from penstock.assured.live.lease_memory import LeaseMemory
from penstock.assured.node_config import LeaseAccess
from penstock.base.counters import Cause, Counters
from penstock.base.errors import AuthenticationError, ConfigurationError, RefusedError
from penstock.net.core.clock import ClockEstimate
from penstock.net.core.framing import encode_frame
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.net.secret import read_secret
from penstock.net.udp import free_ports
from unit.lease_kit import EAST, LEASE, TOWER, WEST, Keeper, start_three, start_witness
from unit.net_kit import MS, run, until

pytestmark = pytest.mark.spec("REPL-14")


async def ask_as(name: str, port: int) -> ControlConnection[Message | LeaseTerms]:
    """A peer that claims to be this router."""
    connection = await connect_control(PROTOCOL, "127.0.0.1", port, node=name)
    await connection.send(LEASE.terms)
    return connection


def promise(directory: Path, memory: Memory, lease: LeaseConfig = LEASE) -> None:
    """The state of a voter that has run before."""
    disk = LeaseMemory(directory, directory.name, lease, Counters("test"))
    disk.open()
    disk._write(memory)
    disk._unlock()


def test_the_first_router_holds_the_lease_and_the_other_one_holds_it_when_the_first_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        east, west, witness = await start_three(tmp_path)
        await until(lambda: east.holds)
        await until(lambda: witness.status().in_touch == [EAST, WEST])
        assert (witness.status().holder, witness.status().bound_to) == (EAST, EAST)
        assert witness.status().epoch == east.held[-1]
        assert east.held[-1] % 2 == 1, "a request without an answer in time is repeated with the next odd number"
        assert not west.held
        await east.close()
        await until(lambda: west.holds)
        assert west.held[0] % 2 == 0
        assert witness.status().holder == WEST
        await asyncio.gather(west.close(), witness.node.close())

    run(story())


def test_a_holder_that_restarts_asks_as_soon_as_it_reaches_a_voter(tmp_path: Path) -> None:
    """Otherwise it would ask again after a third of the lease: longer than this test may take."""
    lease = LeaseConfig(routers=(EAST, WEST), witness=TOWER, lease_ms=600_000)

    async def story() -> None:
        ports = dict(zip(lease.voters, free_ports(3), strict=True))
        for voter in (EAST, TOWER):
            promise(tmp_path / voter, Memory(3, EAST), lease)
        witness = await start_witness(tmp_path, ports[TOWER], lease)
        east = await Keeper(EAST, tmp_path, ports, lease).start()
        assert east.counters["votes_unsent"], "the first request was sent before the connection"
        await until(lambda: east.holds)
        assert east.held == [5]
        await asyncio.gather(east.close(), witness.node.close())

    run(story())


def test_without_a_majority_no_router_holds_the_lease(tmp_path: Path) -> None:
    async def story() -> None:
        ports = dict(zip(LEASE.voters, free_ports(3), strict=True))
        witness = await start_witness(tmp_path, ports[TOWER])
        east = await Keeper(EAST, tmp_path, ports).start()
        await until(lambda: east.holds)
        await witness.node.close()
        await until(lambda: east.lost)
        assert not east.holds
        await until(lambda: east.counters["votes_unsent"])
        assert not east.holds
        witness = await start_witness(tmp_path, ports[TOWER])
        await until(lambda: east.holds)
        assert east.held[-1] > east.held[0]
        await asyncio.gather(east.close(), witness.node.close())

    run(story())


def test_a_restarted_witness_keeps_its_promises(tmp_path: Path) -> None:
    async def story() -> None:
        lease = msgspec.structs.replace(LEASE, lease_ms=60_000)
        port = free_ports(1)[0]
        promise(tmp_path / TOWER, Memory(1, EAST))
        witness = await start_witness(tmp_path, port, lease)

        async def ask(name: str, epoch: int) -> str:
            connection = await connect_control(PROTOCOL, "127.0.0.1", port, node=name)
            async with connection:
                await connection.send(lease.terms)
                await connection.send(Ask(epoch, 1))
                assert isinstance(await connection.receive(), LeaseTerms)
                answer = await connection.receive()
            return "granted" if isinstance(answer, Granted) else getattr(answer, "reason", "")

        assert await ask(WEST, 4) == "held"
        assert await ask(EAST, 3) == "granted"
        await witness.node.close()
        witness = await start_witness(tmp_path, port, lease)
        assert await ask(WEST, 4) == "held"
        assert await ask(WEST, 2) == "epoch"
        assert await ask(EAST, 3) == "granted"
        await witness.node.close()

    run(story())


def test_only_the_routers_of_the_pair_are_accepted(tmp_path: Path) -> None:
    async def story() -> None:
        witness = await start_witness(tmp_path, 0)
        stranger = await ask_as("mallory", witness.control_port)
        assert await stranger.receive() is None
        await stranger.close()
        assert witness.status().in_touch == []
        await witness.node.close()

    run(story())


def test_voters_with_different_lease_times_do_not_vote_together(tmp_path: Path) -> None:
    """A promise of a second is worthless to a holder that relies on a minute."""

    async def story() -> None:
        ports = dict(zip(LEASE.voters, free_ports(3), strict=True))
        witness = await start_witness(tmp_path, ports[TOWER])
        longer = msgspec.structs.replace(LEASE, lease_ms=60_000)
        east = await Keeper(EAST, tmp_path, ports, longer).start()
        await until(lambda: Cause.REFUSED in east.counters.by_cause("requests_refused"))
        assert witness.status().in_touch == []
        assert witness.status().epoch == 0
        assert not east.holds
        await asyncio.gather(east.close(), witness.node.close())

    run(story())


def test_a_router_with_a_wrong_secret_or_without_one_is_refused(tmp_path: Path) -> None:
    for name in ("right", "wrong"):
        (tmp_path / name).write_text(name * 8)
        (tmp_path / name).chmod(0o600)

    async def story() -> None:
        witness = await start_witness(tmp_path, 0, secret_file=str(tmp_path / "right"))
        port = witness.control_port
        for secret in (None, read_secret(tmp_path / "wrong")):
            with pytest.raises((AuthenticationError, RefusedError)):
                await connect_control(PROTOCOL, "127.0.0.1", port, node=EAST, secret=secret)
        connection = await connect_control(
            PROTOCOL, "127.0.0.1", port, node=EAST, secret=read_secret(tmp_path / "right")
        )
        await connection.send(LEASE.terms)
        assert await connection.receive() == LEASE.terms
        await connection.close()
        await witness.node.close()

    run(story())


def test_invalid_bytes_end_their_connection_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        witness = await start_witness(tmp_path, 0)
        port = witness.control_port
        for rubbish in (b"\x00" * 100, b"\xff" * 100, encode_frame(b"\x81\xa4type\xa3ask"), encode_frame(b"\xc1")):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(rubbish)
            writer.write_eof()
            await reader.read()
            writer.close()
            await writer.wait_closed()
        out_of_turn = await connect_control(PROTOCOL, "127.0.0.1", port, node=EAST)
        await out_of_turn.send(Ask(1, 1))  # terms have not been agreed yet
        assert await out_of_turn.receive() == LEASE.terms
        assert await out_of_turn.receive() is None
        answers_nobody = await ask_as(EAST, port)
        await answers_nobody.send(Granted(1, 1, 0, False))
        assert await answers_nobody.receive() == LEASE.terms
        assert await answers_nobody.receive() is None
        asks = await ask_as(EAST, port)
        await asks.send(Ask(1, 1))
        assert await asks.receive() == LEASE.terms
        await asks.receive()
        assert witness.status().in_touch == [EAST]
        await asyncio.gather(*(each.close() for each in (out_of_turn, answers_nobody, asks)))
        await witness.node.close()

    run(story())


def test_clock_differences_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert [apart_ms(each) for each in (None, estimate(500, 100), estimate(-5_000, 1_000))] == [0, 400, 4_000]

    async def story() -> None:
        east, west, witness = await start_three(tmp_path)
        await until(lambda: east.holds)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ControlConnection, "clock_estimate", lambda _: estimate(5_000, 1))
            await until(lambda: "clocks_differ" in caplog.text)
            assert east.links.clocks_apart_ms() == 4_999
        await asyncio.gather(east.close(), west.close(), witness.node.close())

    run(story())


def estimate(offset_ms: int, error_ms: int) -> ClockEstimate:
    return ClockEstimate(offset_ms * MS, error_ms * MS, 0, 1, 0)


def test_a_router_knows_the_addresses_of_both_other_voters_and_a_witness_knows_none() -> None:
    async def story() -> None:
        for name, places in ((EAST, {TOWER: "127.0.0.1:1"}), (TOWER, {EAST: "127.0.0.1:1"})):
            with pytest.raises(ConfigurationError, match="addresses of"):
                LeaseLinks(LEASE, name, LeaseAccess(port=0), lambda *_: None, Counters("test"), places)

    run(story())
