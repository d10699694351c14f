"""A publisher and the filter module of its host: the module gets every packet through shared memory as well.

    with offered_publisher(channel, ("127.0.0.1", 7402)) as publisher:
        publisher.publish("md.us.eq.AAPL.quote", quote)

The module then needs no network for this publisher, and drops copies from the network. The publisher keeps trying to
connect to a module that is absent or has ended.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from penstock.base.backoff import Backoff, BackoffPolicy
from penstock.base.clock import SystemRandomness, random_bytes
from penstock.base.errors import PenstockError, RemoteProtocolError
from penstock.base.limits import PACKET_SIZE_MAX
from penstock.base.log import logger
from penstock.filter.core.control import CONNECTION, PROTOCOL, Holds, OfferRing, Refused
from penstock.middleware.live import MulticastPublisher
from penstock.net.live.control_driver import connect_control
from penstock.net.live.dialling import redial
from penstock.net.live.handover import Handover
from penstock.net.live.loop_thread import LoopThread
from penstock.net.secret import Secret
from penstock.net.udp import Address, Channel
from penstock.shm import RingWriter
from penstock.topics import GroupMap

SEGMENT = "packets"
RING_BYTES = 8 * 1024 * 1024
BACKOFF = BackoffPolicy(base_ms=100, absent_max_ms=2_000)

log = logger("filter.offering")


@contextlib.contextmanager
def offered_publisher(
    channel: Channel,
    address: Address,
    *,
    groups: GroupMap | None = None,
    ring_bytes: int = RING_BYTES,
    secret: Secret | None = None,
    make: Callable[..., MulticastPublisher] = MulticastPublisher,
    **identity: Any,
) -> Iterator[MulticastPublisher]:
    """A publisher whose packets the filter module at `address` also receives through a ring. `identity` are the
    arguments of `make` for the publisher's id (publisher_id, epoch, epoch_path)."""
    with (
        RingWriter.create(ring_bytes, PACKET_SIZE_MAX) as ring,
        make(channel, groups=groups, ring=ring, **identity) as publisher,
        RingOffer(publisher, ring, address, secret=secret),
    ):
        yield publisher


class RingOffer:
    """Works from its creation to close(). `is_held` is set while the filter module reads the ring."""

    def __init__(
        self, publisher: MulticastPublisher, ring: RingWriter, address: Address, *, secret: Secret | None = None
    ) -> None:
        self.is_held = threading.Event()
        self._publisher = publisher
        self._address = address
        self._secret = secret
        self._path = f"@penstock-publisher-{random_bytes(8).hex()}"
        self._handover = Handover(self._path, secret=secret)
        self._handover.offer(SEGMENT, ring.segment)
        self._handover.start()
        self._is_over = asyncio.Event()
        self._loop = LoopThread("penstock-offer")
        self._keeping = self._loop.start(self._keep())

    def close(self) -> None:
        """Make the module stop reading."""
        self._loop.start(self._end()).result()
        self._keeping.result()
        self._loop.close()
        self._handover.close()

    def __enter__(self) -> "RingOffer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _end(self) -> None:
        self._is_over.set()

    async def _keep(self) -> None:
        offering = asyncio.ensure_future(self._offer_always())
        await self._is_over.wait()
        offering.cancel()
        await asyncio.gather(offering, return_exceptions=True)

    async def _offer_always(self) -> None:
        def report(error: PenstockError, is_news: bool) -> None:
            log.debug("offer_not_held", filter=f"{self._address[0]}:{self._address[1]}", why=str(error))

        await redial(self._offer_once, Backoff(SystemRandomness(), BACKOFF), report)

    async def _offer_once(self) -> bool:
        """True if the filter module read the ring."""
        try:
            await self._offer()
        except PenstockError:
            if not self.is_held.is_set():
                raise
        finally:
            was_held = self.is_held.is_set()
            self.is_held.clear()
        return was_held

    async def _offer(self) -> None:
        """Offer the ring; return when the filter module no longer reads it."""
        host, port = self._address
        node = f"publisher-{self._publisher.publisher_id:016x}"
        connection = await connect_control(PROTOCOL, host, port, node=node, secret=self._secret, config=CONNECTION)
        async with connection:
            self._publisher.restart_ring()  # a new reader begins at the ring's base
            source_host, source_port = self._publisher.address
            await connection.send(
                OfferRing(1, self._publisher.publisher_id, self._path, SEGMENT, source_host, source_port)
            )
            async for answer in connection:
                match answer:
                    case Holds():
                        self.is_held.set()
                    case Refused():
                        log.info("ring_refused", code=answer.code, reason=answer.reason)
                        return
                    case _:
                        raise RemoteProtocolError(f"the filter answered an offer with {type(answer).__name__}")
