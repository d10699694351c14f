"""The link between the two routers of a pair: the first one dials, the second one listens. In the loop's thread.

The window of the pair bounds what is written; after a new link, the lists of endpoints and messages come in addition.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from penstock.assured.core.pair.protocol import PAIR, PeerClosed, PeerEvent, PeerFrame, PeerOpened
from penstock.assured.node_config import LivePairConfig
from penstock.assured.wire._layout import PEER_FRAME_SIZE_MAX
from penstock.base.backoff import Backoff, BackoffPolicy
from penstock.base.clock import SystemRandomness
from penstock.base.counters import Cause, Counters
from penstock.base.errors import FrameError, NotEntitledError, PenstockError
from penstock.base.log import logger
from penstock.net.config import ControlConfig
from penstock.net.core.control import Ping, encode_session
from penstock.net.core.control_session import Peer
from penstock.net.core.framing import FrameDecoder, encode_frame
from penstock.net.live.dialling import redial
from penstock.net.live.link import Link, LinkServer, connect_link, end_links
from penstock.net.secret import read_secret
from penstock.net.tls import client_context, server_context

LOOKS_PER_SILENCE = 5
BACKOFF = BackoffPolicy(max_ms=1_000)
LASTING_SECONDS = 2.0
"""A link that ends earlier was not in use."""

LIMITS = ControlConfig(connections_max=64)

log = logger("assured.peering")


class PeerConnection:
    """From start() to close(); at most one link at a time is the pair's, the newest."""

    def __init__(
        self, config: LivePairConfig, name: str, tell: Callable[[PeerEvent], None], counters: Counters
    ) -> None:
        self.other = next(each for each in config.routers if each != name)
        self._name = name
        self._config = config
        self._tell = tell
        self._counters = counters
        self._secret = read_secret(Path(config.link.secret_file)) if config.link.secret_file else None
        self._tls = client_context(config.link.tls) if name == config.routers[0] else None
        self._link: Link | None = None
        self._decoder = FrameDecoder(PEER_FRAME_SIZE_MAX)
        self._last = 0
        self._quiet = 0
        self._looking: asyncio.TimerHandle | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._server: LinkServer | None = None
        if name != config.routers[0]:
            self._server = LinkServer(
                PAIR,
                self,
                node=name,
                host=config.link.host,
                port=config.link.port,
                secret=self._secret,
                tls=server_context(config.link.tls),
                config=LIMITS,
                counters=counters,
            )

    async def start(self) -> None:
        if self._server is not None:
            await self._server.start()
        else:
            self._dialling = asyncio.get_running_loop().create_task(self._keep_dialling())
        self._look()

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.gather(self._dialling, return_exceptions=True)
        if self._link is not None:
            await end_links({self._link}, LIMITS.linger_ms)
        if self._server is not None:
            await self._server.close()

    @property
    def task(self) -> "asyncio.Task[None] | None":
        """Keeps the link; None if the other router dials."""
        return self._dialling

    # For the router

    def send(self, number: int, data: bytes) -> None:
        if self._link is not None and self._link.number == number:
            self._link.write(data)

    def end(self, number: int) -> None:
        if self._link is not None and self._link.number == number:
            self._link.close()

    # Dialling

    async def _keep_dialling(self) -> None:
        """Keep a link open, again and again. The back-off starts again after a link that lasted."""

        def report(error: PenstockError, is_news: bool) -> None:
            say = log.warning if is_news else log.debug
            say("other_router_unreachable", other=self.other, code=error.code, error=str(error))

        await redial(self._link_once, Backoff(SystemRandomness(), BACKOFF), report)

    async def _link_once(self) -> bool:
        """Wait until the link has ended. True if it lasted."""
        access = self._config.link
        began = time.monotonic()
        link = await connect_link(
            PAIR,
            access.host,
            access.port,
            self,
            node=self._name,
            secret=self._secret,
            tls=self._tls,
            config=LIMITS,
            counters=self._counters,
        )
        try:
            await asyncio.shield(link.over)
        finally:
            link.abort()
        return time.monotonic() - began > LASTING_SECONDS

    # Events of links

    def opened(self, link: Link, peer: Peer) -> None:
        if peer.node != self.other:
            self._counters.add("connections_refused", cause=Cause.AUTHENTICATION)
            log.warning("stranger_refused", address=link.address, name=peer.node, expected=self.other)
            link.close(NotEntitledError(f"{peer.node} is not {self.other}, the other router of this pair"))
            return
        before, self._link = self._link, link
        if before is not None:
            before.abort()
        self._last += 1
        link.number = self._last
        self._decoder = FrameDecoder(PEER_FRAME_SIZE_MAX)
        self._quiet = 0
        log.info("other_router_linked", other=self.other, address=link.address)
        self._tell(PeerOpened(link.number))

    def received(self, link: Link, data: bytes) -> None:
        if link is not self._link:
            return
        self._quiet = 0
        try:
            frames = self._decoder.feed(data)
        except FrameError as error:
            self._counters.add("connections_closed", cause=Cause.LENGTH)
            log.warning("other_router_misbehaves", other=self.other, error=str(error))
            link.abort()
            return
        for frame in frames:
            if link is not self._link or link.is_closing:  # the link was ended because of an earlier frame
                return
            self._tell(PeerFrame(link.number, frame))

    def writable(self, link: Link) -> None:
        """The window of the pair bounds what is in flight."""

    def lost(self, link: Link, error: PenstockError) -> None:
        if link is self._link:
            self._link = None
            log.warning("other_router_lost", other=self.other, why=str(error))
            self._tell(PeerClosed(link.number))

    # Silence

    def _look(self) -> None:
        """Send a ping, and end the link if the other router was silent for too long. Checks are counted, not time: a
        process that was suspended itself first reads what has arrived meanwhile."""
        if self._link is not None:
            if self._quiet > LOOKS_PER_SILENCE:
                log.warning("other_router_is_silent", other=self.other)
                self._counters.add("connections_closed", cause=Cause.SILENT)
                self._link.abort()
            else:
                self._quiet += 1
                self._link.write(encode_frame(encode_session(Ping(time.time_ns()))))
        delay = self._config.silence_ms / 1_000 / LOOKS_PER_SILENCE
        self._looking = asyncio.get_running_loop().call_later(delay, self._look)
