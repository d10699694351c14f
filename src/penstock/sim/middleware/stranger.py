"""A stranger on the network: a host without a key that forges datagrams and replays recorded ones."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from penstock.base.clock import NS_PER_MS
from penstock.base.errors import PacketError
from penstock.base.limits import EPOCH_MAX
from penstock.middleware import Address
from penstock.sim.log import describe
from penstock.sim.network import Network
from penstock.sim.world import World
from penstock.wire import (
    AuthenticationKey,
    AuthenticationScope,
    Authenticator,
    Packer,
    Packet,
    PacketFlag,
    VouchedPublisher,
    decode,
    encode_gone,
    encode_nack,
)
from penstock.wire._authentication import strip_trailer

KEY = AuthenticationKey(1, b"of the simulator")
EPOCHS = 100_000
"""More starts of a publisher than a run has."""

ADDRESS: Address = ("stranger", 6_666)
FORGERIES_PER_PACKET = 3
PAUSE_NS = 5 * NS_PER_MS
RECORDED_MAX = 64
"""Number of recorded datagrams from the start, and of the newest ones."""


class Recorded(msgspec.Struct, frozen=True):
    """A recorded datagram of another host, to a group or to one address."""

    data: bytes
    source: Address
    group: int = 0
    destination: Address | None = None


class StrangersPlant(Protocol):
    """A plant on whose network the stranger is."""

    world: World
    network: Network

    @property
    def groups(self) -> Sequence[int]: ...

    @property
    def publisher_count(self) -> int: ...

    def listeners(self) -> Sequence[Address]:
        """Addresses of all nodes that receive datagrams, except the publishers."""
        ...

    def associations(self) -> Sequence[tuple[Address, Address]]:
        """Source and destination of traffic other than that of publishers and receivers."""
        ...


def scope(publishers: int, key: AuthenticationKey = KEY) -> AuthenticationScope:
    """Keys and registered publishers of the nodes of a plant."""
    vouched = tuple(VouchedPublisher(number + 1, 1, EPOCHS) for number in range(publishers))
    return AuthenticationScope("plant", (key,), key.key_id, vouched)


class Stranger:
    """Listens to the groups, and answers every few milliseconds with forged datagrams: from its own address, from the
    publisher's, or between a filter and an application; without a trailer, with a guessed key, or with the trailer of
    another packet. It also records and replays authentic datagrams, including requests.
    """

    def __init__(self, plant: StrangersPlant) -> None:
        self._plant = plant
        self._randomness = plant.world.randomness.fork("stranger")
        self._authenticator = Authenticator([scope(plant.publisher_count, AuthenticationKey(1, b"0123456789abcdef"))])
        self._heard: tuple[bytes, Address] | None = None
        self._oldest: list[Recorded] = []
        self._newest: deque[Recorded] = deque(maxlen=RECORDED_MAX)
        self.forged = 0
        self.resent = 0

    def start(self) -> None:
        network = self._plant.network
        network.attach(ADDRESS, self._hear)
        for group in self._plant.groups:
            network.join(ADDRESS, group)
        self.tap(network)
        self._wait()

    def tap(self, network: Network) -> None:
        """Record unicast datagrams."""
        network.tap(lambda data, source, destination: self._record(Recorded(data, source, destination=destination)))

    def _hear(self, data: bytes, source: Address) -> None:
        if data:
            self._heard = (data, source)
        try:
            packet = decode(strip_trailer(data))
        except PacketError:  # the network damaged it
            return
        self._record(Recorded(data, source, packet.group))

    def _record(self, heard: Recorded) -> None:
        if heard.source == ADDRESS:
            return
        if len(self._oldest) < RECORDED_MAX:
            self._oldest.append(heard)
        self._newest.append(heard)

    def _resend(self) -> None:
        """Replay a recorded datagram: to its destination or to a receiver, from its source or from the stranger's
        address.
        """
        recorded = self._randomness.choose([*self._oldest, *self._newest])
        source = recorded.source if self._randomness.chance(0.3) else ADDRESS
        network = self._plant.network
        self.resent += 1
        self._plant.world.log.write(self._plant.world.now_ns(), "stranger", f"resends {describe(recorded.data)}")
        if recorded.destination is not None:
            network.unicast(source, recorded.destination, recorded.data)
        elif self._randomness.chance(0.5):
            network.multicast(source, recorded.group, recorded.data)
        else:
            network.unicast(source, self._randomness.choose(self._plant.listeners()), recorded.data)

    def _wait(self) -> None:
        self._plant.world.after(1 + self._randomness.below(2 * PAUSE_NS), self._forge)

    def _forge(self) -> None:
        self._wait()
        if self._heard is None:
            return
        data, publisher = self._heard
        try:
            packet = decode(strip_trailer(data))
        except PacketError:  # the network damaged it
            return
        self._resend()
        associations = self._plant.associations()
        for _ in range(FORGERIES_PER_PACKET):
            kinds: list[Callable[[Packet], bytes]] = [
                self._next,
                self._far,
                self._goodbye,
                self._epoch,
                self._gone,
                self._nack,
            ]
            forged = self._with_trailer(self._randomness.choose(kinds)(packet), data)
            source = publisher if self._randomness.chance(0.5) else ADDRESS
            self.forged += 1
            self._plant.world.log.write(self._plant.world.now_ns(), "stranger", f"forges {describe(forged)}")
            if associations and self._randomness.chance(0.4):
                self._plant.network.unicast(*self._randomness.choose(associations), forged)
            elif self._randomness.chance(0.3):
                self._plant.network.unicast(source, publisher, forged)
            else:
                self._plant.network.multicast(source, packet.group, forged)

    def _with_trailer(self, packet: bytes, heard: bytes) -> bytes:
        match self._randomness.below(3):
            case 0:
                return packet
            case 1:
                return packet + self._authenticator.trailer(packet)
            case _:
                return packet + heard[-24:]

    def _data(self, packet: Packet, sequence: int, *, epoch: int | None = None, flags: int = 0) -> bytes:
        stream = (packet.publisher_id, packet.group, packet.epoch if epoch is None else epoch)
        packer = Packer(*stream, first_sequence=min(sequence, 2**64 - 1))
        if flags & PacketFlag.GOODBYE:
            return packer.empty(flags)
        packer.add("md.sim.AAA.trade", b"a message that nobody published")
        made = packer.flush(flags)
        assert made is not None
        return made

    def _next(self, packet: Packet) -> bytes:
        return self._data(packet, packet.sequence + 1 + self._randomness.below(3))

    def _far(self, packet: Packet) -> bytes:
        return self._data(packet, self._randomness.choose([2**63, 2**64 - 1, packet.sequence + 5_000]))

    def _goodbye(self, packet: Packet) -> bytes:
        return self._data(packet, packet.sequence + 1, flags=int(PacketFlag.GOODBYE | PacketFlag.KEEP_ALIVE))

    def _epoch(self, packet: Packet) -> bytes:
        return self._data(packet, 1, epoch=self._randomness.choose([min(packet.epoch + 1, EPOCH_MAX), EPOCH_MAX]))

    def _gone(self, packet: Packet) -> bytes:
        return encode_gone(packet.publisher_id, packet.group, packet.epoch, [(1, min(packet.sequence, 2**63) + 10)])

    def _nack(self, packet: Packet) -> bytes:
        ranges = [(1, max(packet.sequence, 1))]
        stream = (packet.publisher_id, packet.group, packet.epoch)
        return encode_nack(*stream, ranges, requester=ADDRESS[1], number=self.forged + 1)
