"""Entitlements in a plant of real processes: taken away at run time, sealed, delayed."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from admin_kit import signed_token
from integration.plant_kit import MARKET, PlantOptions, TestPlant, is_real
from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Counters
from penstock.base.errors import RefusedError, RevokedError, SealKeyError
from penstock.capture.live.reading import Models
from penstock.client.gate import Gate
from penstock.client.service import Protection, opened_stream
from penstock.middleware.core.events import Deliver, DeliverBatch
from penstock.middleware.live.receiver import MulticastReceiver
from penstock.middleware.unicast import OpenStream, Packets
from penstock.security import Grant
from penstock.wire import MessageFlag, decode, decode_origin

ORIGIN = 1


@pytest.mark.spec("ADM-5", "SUB-4")
def test_what_is_revoked_ends_on_multicast_and_tcp_and_says_why(tmp_path: Path) -> None:
    with TestPlant(tmp_path, PlantOptions()) as plant:
        plant.start()
        alice, bob = plant.connect("alice"), plant.connect("bob")
        streams = [plant.read(alice.subscribe(MARKET, transport=each)) for each in ("multicast", "tcp")]
        other = plant.read(bob.subscribe(MARKET, transport="tcp"))
        held = alice.admin.subscribe([MARKET])
        plant.until(lambda: all(each.messages for each in [*streams, other]), "messages")
        for stream in streams:
            stream.is_end_expected = True
        answer = plant.administrator().revoke("alice", "left the firm")
        assert len(answer.subscriptions) == 3
        plant.until(lambda: all(each.is_over for each in streams), "the end of both streams")
        for stream in streams:
            assert isinstance(stream.error, RevokedError)
            assert "left the firm" in str(stream.error)
        with pytest.raises(RevokedError, match="left the firm"):
            alice.subscribe(MARKET)
        for address in held.streams[0].addresses:
            plant.until(lambda address=address: is_revoked(address, held.token), "every adapter to hear of it")
        plant.settle(other)
        other.check_complete()


def is_revoked(address: Any, token: str) -> bool:
    """False for an adapter that has not heard of the revocation yet."""
    try:
        asyncio.run(open_and_close(address, token))
    except RefusedError as error:
        return error.peer_code == "revoked" and "left the firm" in str(error)
    return False


async def open_and_close(address: Any, token: str) -> None:
    async with opened_stream(address, Protection(), "alice", OpenStream(token, [MARKET])):
        pass


@pytest.mark.spec("ADM-7")
def test_a_sealed_feed_is_read_by_the_entitled_and_goes_on_when_one_of_them_is_no_more(tmp_path: Path) -> None:
    with TestPlant(tmp_path, PlantOptions(sealed=True)) as plant:
        plant.start(players=False)
        alice, bob = plant.connect("alice"), plant.connect("bob")
        staying, leaving = (plant.read(each.subscribe(MARKET, transport="multicast")) for each in (alice, bob))
        plant.until(lambda: staying.subscription._lines and leaving.subscription._lines, "keys for both")
        kept = bob.admin.subscribe([MARKET]).streams[0].keys
        outside: list[Any] = []
        with MulticastReceiver(plant.channels) as outsider:
            plant.start_exchange()
            plant.until(lambda: len(staying.messages) > 500 and leaving.messages, "messages")
            listen(outsider, outside, 500)
            leaving.is_end_expected = True
            plant.administrator().revoke("bob", "left the firm")
            plant.until(lambda: leaving.is_over, "the end of bob's messages")
            later: list[Any] = []
            old = gate_with(kept)
            plant.until(lambda: is_locked(old, later, outsider), "messages under a key that bob does not have")
            after = staying.last()
            plant.until(lambda: staying.last() > after + 500, "messages after it")
            plant.settle(staying)
        staying.check_complete(first=1)
        assert staying.subscription.statistics().unreadable == 0
        opened = {(each.topic, each.seq): lasting(each) for each in staying.messages}
        for message in outside:
            assert message.flags & MessageFlag.SEALED
            number = decode_origin(message.extensions[ORIGIN]).message_sequence
            clear = opened[message.topic, number]
            own = old.open(message)
            assert own is not None
            assert bytes(own.payload) not in bytes(message.payload)
            assert lasting(alice.models.read(own)) == clear


def lasting(message: Any) -> bytes:
    """The content without the receive time, which differs between adapters."""
    content, at = bytes(message), message.model.fields_by_name["receive_time"].offset
    return content[:at] + content[at + 8 :]


def listen(receiver: MulticastReceiver, into: list[Any], count: int) -> None:
    deadline = time.monotonic() + 30
    while len(into) < count:
        assert time.monotonic() < deadline
        for each in receiver.receive(1.0):
            if isinstance(each, Deliver | DeliverBatch):
                into += [message for message in each.messages if is_real(message)]


def gate_with(keys: list[Any]) -> Gate:
    gate = Gate([">"], None, Models(lambda *_: pytest.fail("no model may be requested")), Counters("test"))
    gate.hold_keys(keys)
    return gate


def is_locked(gate: Gate, seen: list[Any], receiver: MulticastReceiver) -> bool:
    listen(receiver, seen, len(seen) + 1)
    try:
        gate.open(seen[-1])
    except SealKeyError:
        return True
    return False


@pytest.mark.spec("ADM-2", "AUTH-5")
def test_a_delayed_client_gets_exactly_what_is_old_enough(tmp_path: Path) -> None:
    delay_s = 2
    with TestPlant(tmp_path, PlantOptions(journal=True, rate=500)) as plant:
        plant.start(players=False)
        live = plant.read(plant.connect("alice").subscribe(MARKET))
        dora = plant.connect("dora")
        delayed = plant.read(dora.subscribe(MARKET))  # one minute behind: no message is old enough
        (stream,) = dora.admin.subscribe([MARKET]).streams
        assert stream.delay_s == 60
        assert [(each.transport, each.group, each.port) for each in stream.addresses] == [("unicast", "", 0)] * 2
        plant.start_exchange()
        plant.until(lambda: len(live.messages) > 100, "messages")
        begun_ns = time.time_ns()
        token = signed_token(tmp_path / "signing.pem", "dora", [Grant(MARKET, "receive", delay_s)])
        came: list[tuple[int, Any]] = []
        request = OpenStream(token, [MARKET], from_ns=begun_ns - 3600 * NS_PER_SECOND)
        asyncio.run(asyncio.wait_for(read_for(stream.addresses[0], request, came, 300), 120))
        plant.settle(live)
    numbers = [decode_origin(message.extensions[ORIGIN]).message_sequence for _, message in came]
    assert numbers == list(range(1, len(numbers) + 1)), "all messages, from the first one on"
    for came_ns, message in came:
        received_ns = dora.models.read(message).receive_time
        assert came_ns - received_ns >= delay_s * NS_PER_SECOND
    assert delayed.messages == []
    assert delayed.subscription.statistics().refused == 0


async def read_for(address: Any, request: OpenStream, into: list[tuple[int, Any]], count: int) -> None:
    async with opened_stream(address, Protection(), "dora", request) as (connection, _):
        async for said in connection:
            assert isinstance(said, Packets), said
            now_ns = time.time_ns()
            for packet in said.packets:
                into += [(now_ns, each) for each in decode(packet) if is_real(each)]
            if len(into) >= count:
                return
