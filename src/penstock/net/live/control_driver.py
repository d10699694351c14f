"""Control connections on TCP: server and client. Unprotected connections are limited to the loopback interface.

server = ControlServer(JOURNAL, serve, node="journal-1")
async with server, await connect_control(JOURNAL, "127.0.0.1", server.port, node="reader") as connection:
    await connection.send(Subscribe("md.>"))
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.base.clock import SystemClock, random_bytes
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.net.config import ClockConfig, ControlConfig
from penstock.net.core.clock import ClockEstimate, ClockEstimator
from penstock.net.core.control import NONCE_SIZE, ControlProtocol
from penstock.net.core.control_session import ControlSession, Peer, Side
from penstock.net.core.events import ClockSampled
from penstock.net.live.stream import StreamConnection, open_stream
from penstock.net.live.stream_server import StreamServer, Through
from penstock.net.place import is_loopback
from penstock.net.secret import Secret

M = TypeVar("M")


class ControlConnection(StreamConnection[M, Peer]):
    """One control connection. Its heartbeat also estimates the offset of the peer's wall clock."""

    def __init__(
        self,
        protocol: ControlProtocol[M],
        side: Side,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        node: str,
        secret: Secret | None,
        config: ControlConfig,
        counters: Counters,
    ) -> None:
        clock = SystemClock()
        self._estimator = ClockEstimator(ClockConfig(), counters)
        session = ControlSession(
            protocol,
            side,
            node=node,
            nonce=random_bytes(NONCE_SIZE),
            secret=secret,
            clock=clock,
            config=config,
            counters=counters,
        )
        super().__init__(session, reader, writer, config=config, counters=counters, clock=clock)

    def clock_estimate(self) -> ClockEstimate | None:
        """The peer's wall clock minus the local one; None before the first answered heartbeat."""
        return self._estimator.estimate(self.clock.now_ns())

    def sampled(self, instruction: ClockSampled) -> None:
        self._estimator.add(instruction.sample, self.clock.now_ns())


class ControlServer(StreamServer):
    """Serves a protocol; `serve(connection)` is called for each peer that passed the handshake."""

    def __init__(
        self,
        protocol: ControlProtocol[M],
        serve: Callable[[ControlConnection[M]], Awaitable[None]],
        *,
        node: str,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: Secret | None = None,
        tls: ssl.SSLContext | None = None,
        config: ControlConfig | None = None,
        counters: Counters | None = None,
        through: Through | None = None,
    ) -> None:
        require_protection(host, secret, tls)
        config = config or ControlConfig()
        self.counters = counters or Counters("control", protocol=protocol.name)

        def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ControlConnection[M]:
            return ControlConnection(
                protocol,
                "server",
                reader,
                writer,
                node=node,
                secret=secret,
                config=config,
                counters=self.counters,
            )

        super().__init__(
            connection, serve, host=host, port=port, config=config, counters=self.counters, tls=tls, through=through
        )


async def connect_control(
    protocol: ControlProtocol[M],
    host: str,
    port: int,
    *,
    node: str,
    secret: Secret | None = None,
    tls: ssl.SSLContext | None = None,
    config: ControlConfig | None = None,
    counters: Counters | None = None,
) -> ControlConnection[M]:
    """Return a connection whose handshake is complete."""
    require_protection(host, secret, tls)
    require_verified(host, tls)
    config = config or ControlConfig()
    counters = counters or Counters("control", protocol=protocol.name)
    reader, writer = await open_stream(host, port, tls=tls, timeout_ms=config.handshake_ms)
    connection = ControlConnection(
        protocol, "client", reader, writer, node=node, secret=secret, config=config, counters=counters
    )
    return await connection.opened_or_closed()


def require_verified(host: str, tls: ssl.SSLContext | None) -> None:
    """Raise if `tls` would accept any certificate for another host."""
    if tls is not None and not is_loopback(host) and (tls.verify_mode != ssl.CERT_REQUIRED or not tls.check_hostname):
        raise ConfigurationError(
            "this TLS context accepts any certificate", where=host, hint="use ssl.create_default_context(cafile=…)"
        )


def require_protection(host: str, secret: Secret | None, tls: ssl.SSLContext | None) -> None:
    missing = [name for name, value in (("TLS", tls), ("a secret", secret)) if value is None]
    if missing and not is_loopback(host):
        raise ConfigurationError(
            f"a control connection beyond the loopback interface needs {' and '.join(missing)}",
            where=host,
            hint="pass tls= and secret=, or use 127.0.0.1",
        )
