"""Follows a journal on another machine.

    async for sequence, timestamp_ns, payload in follow_remote("10.0.0.7", 7410, from_sequence=1_000, ...):
        ...

A connection that is lost is made again, and the records go on where they stopped: none twice, none left out. Whoever
leaves the loop early closes the generator (contextlib.aclosing), and with it the connection.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Callable
from typing import TypeAlias

from penstock.base.backoff import Backoff
from penstock.base.clock import SystemRandomness
from penstock.base.counters import Counters
from penstock.base.errors import (
    ConnectionLostError,
    JournalError,
    JournalGoneError,
    NotEntitledError,
    PenstockError,
    RemoteProtocolError,
    RevokedError,
    TokenError,
    TokenExpiredError,
    UnreachableError,
)
from penstock.base.log import logger
from penstock.journal.core.messages import (
    CONNECTION,
    PROTOCOL,
    CaughtUp,
    Extent,
    Follow,
    Gone,
    JournalMessage,
    Login,
    Measure,
    Records,
    Refused,
    Unavailable,
    decode_records,
)
from penstock.journal.core.records import NOTHING, Record, RecordBatch
from penstock.net.config import ControlConfig
from penstock.net.live.control_driver import ControlConnection, connect_control
from penstock.net.live.dialling import Redialling
from penstock.net.secret import Secret

LogIn: TypeAlias = Callable[[str], str]
"""Gets a token for the journal of that name from the administration server. It may block: a thread calls it."""

_REFUSALS: dict[str, type[PenstockError]] = {
    kind.code: kind for kind in (NotEntitledError, RevokedError, TokenError, TokenExpiredError)
}

log = logger("journal.client")


async def follow_remote(
    host: str,
    port: int,
    *,
    from_sequence: int | None = None,
    from_time_ns: int | None = None,
    is_live: bool = True,
    patience_seconds: float = 60.0,
    node: str = "follower",
    secret: Secret | None = None,
    tls: ssl.SSLContext | None = None,
    log_in: LogIn | None = None,
    config: ControlConfig = CONNECTION,
) -> AsyncGenerator[Record, None]:
    """The records from a place, one by one; see follow_remote_batches()."""
    batches = follow_remote_batches(
        host,
        port,
        from_sequence=from_sequence,
        from_time_ns=from_time_ns,
        is_live=is_live,
        patience_seconds=patience_seconds,
        node=node,
        secret=secret,
        tls=tls,
        log_in=log_in,
        config=config,
    )
    async with contextlib.aclosing(batches):
        async for batch in batches:
            for record in batch:
                yield record


async def follow_remote_batches(
    host: str,
    port: int,
    *,
    from_sequence: int | None = None,
    from_time_ns: int | None = None,
    is_live: bool = True,
    patience_seconds: float = 60.0,
    node: str = "follower",
    secret: Secret | None = None,
    tls: ssl.SSLContext | None = None,
    log_in: LogIn | None = None,
    config: ControlConfig = CONNECTION,
) -> AsyncGenerator[RecordBatch, None]:
    """The records from a place, as they come; without `is_live` it ends with the newest one.

    After the first connection, the client retries a lost connection for `patience_seconds`. `log_in` returns a token
    for each connection, for a server that requires tokens; after a token expires, the client reconnects with a new
    token.
    """
    wish = Follow(from_sequence, from_time_ns)
    counters = Counters("journal.client")
    loop = asyncio.get_running_loop()
    give_up_at = loop.time()  # a server that was never reached is not retried
    is_served = False

    def report(error: PenstockError, is_news: bool) -> None:
        nonlocal give_up_at, is_served
        if is_served:  # patience begins with the loss: a quiet journal sends nothing for hours
            give_up_at = loop.time() + patience_seconds
            is_served = False
        if not isinstance(error, ConnectionLostError | UnreachableError) or loop.time() >= give_up_at:
            raise error
        log.warning("connecting_again", host=host, port=port, error=str(error))

    async for attempt in Redialling(Backoff(SystemRandomness()), report):
        with attempt:
            connection = await connect_control(
                PROTOCOL, host, port, node=node, secret=secret, tls=tls, config=config, counters=counters
            )
            async with connection:
                await _show_token(connection, log_in)
                await connection.send(wish)
                async for message in connection:
                    batch = _taken(message, wish.from_sequence)
                    if len(batch):
                        wish = Follow(int(batch.rows[-1]["sequence"]) + 1)
                        yield batch
                    elif not is_live:
                        return
                    is_served = True
                    attempt.succeeded()
            raise ConnectionLostError("the server said goodbye", where=f"{host}:{port}")


async def measure_remote(
    host: str,
    port: int,
    *,
    from_time_ns: int | None = None,
    node: str = "follower",
    secret: Secret | None = None,
    tls: ssl.SSLContext | None = None,
    log_in: LogIn | None = None,
    config: ControlConfig = CONNECTION,
) -> Extent:
    """Which records a journal on another machine has."""
    counters = Counters("journal.client")
    connection = await connect_control(
        PROTOCOL, host, port, node=node, secret=secret, tls=tls, config=config, counters=counters
    )
    async with connection:
        await _show_token(connection, log_in)
        await connection.send(Measure(from_time_ns))
        answer = await connection.receive()
    match answer:
        case Extent() if len(answer.firsts) == len(answer.sizes) and answer.firsts == sorted(answer.firsts):
            return answer
        case Unavailable():
            raise JournalError(f"the server cannot read its journal: {answer.what} [{answer.code}]")
        case Refused():
            raise _refusal(answer)
        case _:
            raise RemoteProtocolError(
                f"a server does not answer {type(answer).__name__} when it is asked for its extent"
            )


async def _show_token(connection: ControlConnection[JournalMessage], log_in: LogIn | None) -> None:
    """Log in; the server's name is that of its journal."""
    if log_in is not None:
        await connection.send(Login(await asyncio.to_thread(log_in, connection.peer.node)))


def _refusal(refused: Refused) -> PenstockError:
    return _REFUSALS.get(refused.code, RemoteProtocolError)(refused.what, hint=refused.hint)


def _taken(message: object, expected: int | None) -> RecordBatch:
    """The records of a message, none if the server has no more for now."""
    match message:
        case Records():
            if expected is not None and message.first_sequence != expected:
                raise RemoteProtocolError(f"record {message.first_sequence} came instead of {expected}")
            return decode_records(message)
        case CaughtUp():
            return NOTHING
        case Gone():
            raise JournalGoneError(message.what, first_sequence=message.first_sequence)
        case Unavailable():
            raise JournalError(f"the server cannot read its journal: {message.what} [{message.code}]")
        case Refused():
            raise _refusal(message)
        case _:
            raise RemoteProtocolError(f"a server does not say {type(message).__name__}")
