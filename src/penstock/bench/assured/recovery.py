"""Recovery of a router with a million queued messages, and the memory per queued message."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.assured.client import open_assured
from penstock.bench.assured.process import CONDITIONS, ORDERS, PAYLOAD_SIZE, TOPIC, RouterProcess, disk_folder
from penstock.bench.harness import Result, result
from penstock.bench.transports import check

MESSAGES = 1_000_000
WINDOW = 4_096
CACHE_BYTES = 4 << 20
SECONDS_MAX = 5.0
BYTES_MAX = 200.0


def run() -> Iterator[Result]:
    with disk_folder() as folder:
        router = RouterProcess(folder, cache_bytes=CACHE_BYTES)
        with router:
            empty = _resident_bytes(router.pid)
            _fill(router.place)
            filled = _resident_bytes(router.pid)
            router.kill()
        started = time.perf_counter()
        with router:
            seconds = time.perf_counter() - started
            (orders,) = (each for each in router.status().endpoints if each.endpoint.name == ORDERS.name)
            check(orders.messages == MESSAGES, f"{orders.messages} messages were recovered")
            recovered = _resident_bytes(router.pid)
    conditions = f"{CONDITIONS}; {MESSAGES} messages in one queue"
    yield result(
        "assured",
        "recovery_s_1m",
        seconds,
        "s",
        against="the goal",
        against_value=SECONDS_MAX,
        conditions=f"{conditions}; from the start of the process after a kill -9, including Python, until it accepts "
        "clients; its files are in the page cache",
    )
    yield result(
        "assured",
        "bytes_per_queued_message",
        (filled - empty - CACHE_BYTES) / MESSAGES,
        "bytes",
        against="the goal",
        against_value=BYTES_MAX,
        conditions=f"{conditions}; growth of the process's resident memory, without its message cache of "
        f"{CACHE_BYTES >> 20} MiB; after a kill -9 and recovery, {(recovered - empty) / MESSAGES:.0f} bytes per "
        "message more than an empty router",
    )


def _fill(place: str) -> None:
    payload = os.urandom(PAYLOAD_SIZE)
    with open_assured(place) as assured, assured.publisher(window=WINDOW) as publisher:
        for _ in range(MESSAGES):
            publisher.send(TOPIC, payload)


def _resident_bytes(process: int) -> int:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
