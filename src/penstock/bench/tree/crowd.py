"""Many subscribers in one process at low cost: they connect one after another; then one loop reads all sockets, records
arrival times, and decodes the data afterwards.
"""

import asyncio
import os
import select
import socket
import time
from collections.abc import Sequence

from penstock.bench.transports import check, now
from penstock.bench.tree.party import PACKETS_AT, BareParty
from penstock.net.core.control import Ping, encode_session
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.tree.core.kernel._frame import FRAME_SIZE_MAX, KIND_CONTROL, split_packets

READ_SIZE = 65_536
POLL_SECONDS = 0.02
PINGS_SECONDS = 3.0
"""Interval in which each subscriber sends one sign of life."""
STALLED_BUFFER_SIZE = 4_096


class Crowd:
    def __init__(self) -> None:
        self._parties: list[BareParty] = []
        self._sockets: list[int] = []
        self._decoders: dict[int, FrameDecoder] = {}
        self._epoll = select.epoll()
        self._pinged = 0
        self._ping_ns = 0

    async def add(self, place: str, name: str, topics: Sequence[str]) -> None:
        party = BareParty(name, "subscriber")
        await party.connect(place)
        await party.subscribe(topics)
        party.without_pings()
        party.link.pause()
        socket_number: int = party.link.transport.get_extra_info("socket").fileno()
        self._parties.append(party)
        self._sockets.append(socket_number)
        self._decoders[socket_number] = FrameDecoder(FRAME_SIZE_MAX)
        self._epoll.register(socket_number, select.EPOLLIN)
        self._show_life()

    def read(self, seconds: float, *, settle_seconds: float) -> list[tuple[int, bytes]]:
        """Return the packets of this many seconds with their arrival times, after a settling time. Decoding is deferred
        to the end, because it would delay the reading of later packets.
        """
        came: list[tuple[int, int, bytes]] = []
        since_ns = now() + int(settle_seconds * 1e9)
        until_ns = since_ns + int(seconds * 1e9)
        while now() < until_ns:
            for socket_number, _ in self._epoll.poll(POLL_SECONDS):
                data = os.read(socket_number, READ_SIZE)
                came.append((now(), socket_number, data))
            self._show_life()
        check(all(data for _, _, data in came), "a subscriber's link has ended")
        found = [(at_ns, packet) for at_ns, number, data in came for packet in self._packets(number, data)]
        return [(at_ns, packet) for at_ns, packet in found if at_ns >= since_ns]

    async def close(self) -> None:
        self._epoll.close()
        for party in self._parties:
            await party.close()

    def _packets(self, socket_number: int, data: bytes) -> list[bytes]:
        frames = self._decoders[socket_number].feed(data)
        blocks = [frame[PACKETS_AT:] for frame in frames if frame[0] < KIND_CONTROL]
        return [packet for block in blocks for packet in split_packets(block)]

    def _show_life(self) -> None:
        """Send signs of life for some subscribers, in turns, so that this never takes long."""
        count = len(self._sockets)
        due = min(int((now() - self._ping_ns) / 1e9 * count / PINGS_SECONDS), count)
        if not due:
            return
        self._ping_ns = now()
        ping = encode_frame(encode_session(Ping(time.monotonic_ns())))
        for _ in range(due):
            self._pinged = (self._pinged + 1) % count
            os.write(self._sockets[self._pinged], ping)


async def stalled_subscriber(place: str) -> BareParty:
    """Return a subscriber that wants everything, reads nothing, and has a small socket buffer."""
    party = BareParty("idle", "subscriber")
    await party.connect(place)
    party.link.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STALLED_BUFFER_SIZE)
    await party.subscribe()
    party.link.pause()
    await asyncio.sleep(0)
    return party
