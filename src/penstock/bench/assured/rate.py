"""Acknowledgements per second of one publisher, for a message router and for peer servers, in turns."""

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from penstock.assured.client import AssuredPublisher, open_assured
from penstock.bench.assured.peers import PEERS, StoringPeer
from penstock.bench.assured.process import (
    CONDITIONS,
    IN_FLIGHT,
    ORDERS,
    PAYLOAD_SIZE,
    TOPIC,
    RouterProcess,
    disk_folder,
)
from penstock.bench.harness import Result, result
from penstock.bench.journal import BareFile

ROUNDS = 7
ROUND_SECONDS = 1.5
PORTION = 2_560
SINGLE_ROUNDS = 31
SINGLE_SECONDS = 0.1


def run() -> Iterator[Result]:
    payload = os.urandom(PAYLOAD_SIZE)
    installed = [peer for peer in PEERS if peer.program()]
    for peer in PEERS:
        if peer not in installed:
            sys.stderr.write(f"no speedup_vs_{peer.name}: it is not installed (apt install {peer.package})\n")
    with disk_folder() as folder, ExitStack() as stack:
        router = stack.enter_context(RouterProcess(folder))
        assured = stack.enter_context(open_assured(router.place))
        publisher = stack.enter_context(assured.publisher(window=IN_FLIGHT))
        calls: dict[str, Callable[[], None]] = {"router": lambda: _send(publisher, payload)}
        emptied: dict[str, Callable[[], None]] = {"router": lambda: assured.empty_endpoint(ORDERS.name)}
        for peer in installed:
            (folder / peer.name).mkdir()
            client = stack.enter_context(peer.running(folder / peer.name, payload))
            calls[peer.name] = lambda client=client: client.publish(PORTION, IN_FLIGHT)  # type: ignore[misc]
            emptied[peer.name] = client.empty
        rates = {name: statistics.median(each) for name, each in _interleaved(calls, emptied).items()}
    yield from _results(rates)
    with disk_folder() as folder:
        yield from _single(folder, payload, installed)


def _send(publisher: AssuredPublisher, payload: bytes) -> None:
    send = publisher.send
    for _ in range(PORTION):
        send(TOPIC, payload)


def _interleaved(
    calls: dict[str, Callable[[], None]], emptied: dict[str, Callable[[], None]]
) -> dict[str, list[float]]:
    """Return messages per second of each call, round by round, so that a slow phase of the disk affects all."""
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        call()
        emptied[name]()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            rates[name].append(PORTION * _rate(call, ROUND_SECONDS))
            emptied[name]()
    return rates


def _rate(call: Callable[[], object], seconds: float) -> float:
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < seconds:
        call()
        count += 1
    return count / elapsed


def _results(rates: dict[str, float]) -> Iterator[Result]:
    conditions = (
        f"{CONDITIONS}; one publisher with {IN_FLIGHT} in flight, one queue, no consumer; router: one publisher.send() "
        "of the client library per message; others: a bare socket that writes many messages at once; medians of "
        f"{ROUNDS} alternating rounds"
    )
    best = max((name for name in rates if name != "router"), key=lambda name: rates[name], default="")
    yield result(
        "assured",
        "acks_per_s_256",
        rates["router"],
        "1/s",
        against=best,
        against_value=rates.get(best, 0.0),
        conditions=conditions,
    )
    for peer in PEERS:
        if peer.name in rates:
            yield result(
                "assured",
                f"speedup_vs_{peer.name}",
                rates["router"] / rates[peer.name],
                "ratio",
                against=f"{peer.name} ({peer.how}): {rates['router']:.0f} messages/s to {rates[peer.name]:.0f}",
                against_value=1,
                conditions=conditions,
            )


def _single(folder: Path, payload: bytes, installed: list[StoringPeer]) -> Iterator[Result]:
    """Yield medians of the ratios per round: rounds are short, and the disk's speed varies between rounds."""
    with ExitStack() as stack:
        router = stack.enter_context(RouterProcess(folder))
        assured = stack.enter_context(open_assured(router.place))
        publisher = stack.enter_context(assured.publisher())
        bare = stack.enter_context(BareFile(folder / "bare"))
        publisher.publish(TOPIC, payload)
        calls: dict[str, Callable[[], object]] = {
            "router": lambda: publisher.publish(TOPIC, payload),
            "bare": lambda: bare.write(payload),
        }
        for peer in installed:
            (folder / peer.name).mkdir()
            client = stack.enter_context(peer.running(folder / peer.name, payload))
            calls[peer.name] = lambda client=client: client.publish(1, 1)  # type: ignore[misc]
        rates = [{name: _rate(call, SINGLE_SECONDS) for name, call in calls.items()} for _ in range(SINGLE_ROUNDS)]
    medians = {name: statistics.median(each[name] for each in rates) for name in calls}
    conditions = f"{CONDITIONS}; one publisher, one message at a time; medians of {SINGLE_ROUNDS} alternating rounds"
    told = f"medians: {medians['router']:.0f} messages/s"
    others = {"single_ratio_to_fdatasync": ("bare", "write and fdatasync of the same payload to a growing file")}
    others |= {f"single_speedup_vs_{peer.name}": (peer.name, f"{peer.name} ({peer.how})") for peer in installed}
    for metric, (name, against) in others.items():
        yield result(
            "assured",
            metric,
            statistics.median(each["router"] / each[name] for each in rates),
            "ratio",
            against=f"{against}; {told}, {medians[name]:.0f} beside",
            against_value=1,
            conditions=conditions,
        )
