"""Fetch the pages of all nodes concurrently, each within a bounded time and size. A node that does not answer, or
answers nonsense, becomes a reading with the error.
"""

import asyncio
import contextlib
import os
import ssl
import time
from collections.abc import Sequence
from pathlib import Path

from penstock.base.errors import ConfigurationError, RemoteProtocolError
from penstock.net.page_access import read_token
from penstock.top.core.places import Place
from penstock.top.core.reading import Page, Pages, Reading, parse_answer, understand

TIMEOUT_SECONDS = 3.0
"""Time limit for all pages of a node together."""

ANSWER_SIZE_MAX = 16 * 1024 * 1024
CHUNK_SIZE = 65_536
AT_ONCE = 32
"""Maximum number of nodes polled concurrently."""

HEALTHY, UNAUTHORIZED, NOT_FOUND, UNHEALTHY = 200, 401, 404, 503


async def fetch_all(places: Sequence[Place], timeout_s: float = TIMEOUT_SECONDS) -> list[Reading]:
    """Fetch all nodes, in the given order; an error of a node does not raise."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def in_turn(place: Place) -> Reading:
        async with slots:
            return await fetch(place, timeout_s)

    return await asyncio.gather(*map(in_turn, places))


async def fetch(place: Place, timeout_s: float = TIMEOUT_SECONDS) -> Reading:
    if not place.port:
        return Reading(place, time.monotonic_ns(), "unknown", place.why)
    asked = ""
    try:
        async with asyncio.timeout(timeout_s):
            found = []
            for asked in ("/health", "/status", "/metrics"):
                found.append(await _get(place, asked))
        return understand(place, _pages(*found), time.monotonic_ns())
    except TimeoutError:
        return Reading(place, time.monotonic_ns(), "unreachable", f"no answer to {asked} within {timeout_s:g} s")
    except OSError as error:
        return Reading(place, time.monotonic_ns(), "unreachable", _why(error))
    except UnicodeError:
        return Reading(place, time.monotonic_ns(), "unreachable", f"{place.host[:80]!r} is not a host name")
    except ConfigurationError as error:  # the token file cannot be read
        return Reading(place, time.monotonic_ns(), "unreachable", str(error))
    except RemoteProtocolError as error:
        return Reading(place, time.monotonic_ns(), "garbled", str(error))


def _pages(health: Page, status: Page, metrics: Page) -> Pages:
    if health.code == UNAUTHORIZED:
        raise RemoteProtocolError("/health answered 401: the token is wrong")
    if health.code not in (HEALTHY, UNHEALTHY):
        raise RemoteProtocolError(f"/health answered {health.code}: this is not a Penstock node")
    return Pages(health.body, _contents(status, "/status"), _contents(metrics, "/metrics"))


def _contents(page: Page, path: str) -> bytes | None:
    if page.code == NOT_FOUND:
        return None
    if page.code != HEALTHY:
        raise RemoteProtocolError(f"{path} answered {page.code}")
    return page.body


async def _get(place: Place, path: str) -> Page:
    tls = _tls(place)
    token = read_token(Path(place.token_file)).decode() if place.token_file and tls is not None else ""
    authorization = f"Authorization: Bearer {token}\r\n" if token else ""
    reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls)
    try:
        host = f"[{place.host}]" if ":" in place.host else place.host
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}:{place.port}\r\n{authorization}\r\n".encode())
        data = bytearray()
        while chunk := await reader.read(CHUNK_SIZE):
            data += chunk
            if len(data) > ANSWER_SIZE_MAX:
                raise RemoteProtocolError(f"the answer exceeds the limit of {ANSWER_SIZE_MAX:,} bytes", where=path)
        return parse_answer(bytes(data))
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _why(error: OSError) -> str:
    """Return the system's error text, because asyncio and TLS give too little or too much detail for an operator."""
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)


def _tls(place: Place) -> ssl.SSLContext | None:
    """Trust only the certificate in the plant's document, whatever its names. A certificate of an authority must have
    the name of the host.
    """
    if place.ca_file:
        return ssl.create_default_context(cafile=place.ca_file)
    if not place.certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(Path(place.certificate))
    return context
