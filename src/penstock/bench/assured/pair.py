"""A pair of message routers compared with a single one: the cost of copies, the cost of a stopped standby for messages
without copies, and the duration of a takeover.
"""

import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from penstock.assured.client import Assured, AssuredEndpoint, AssuredPublisher, open_assured
from penstock.assured.config import Treatment
from penstock.assured.node_config import (
    LeaseAccess,
    LivePairConfig,
    PairAccess,
    RouterAccess,
    VotingConfig,
    WitnessConfig,
)
from penstock.bench.adapters import NodeProcess, wait_for
from penstock.bench.assured.process import (
    CONDITIONS,
    IN_FLIGHT,
    ORDERS,
    PAYLOAD_SIZE,
    TOPIC,
    RouterProcess,
    disk_folder,
)
from penstock.bench.brokers import HOST, free_port
from penstock.bench.harness import Result, result
from penstock.bench.transports import PATIENCE_SECONDS, check, other_process

NAMES = ("one", "two")
WITNESS = "witness"
TREATMENTS: tuple[Treatment, ...] = ("none", "asynchronous", "synchronous")
ROUNDS = 7
ROUND_SECONDS = 1.0
PORTION = 2_560
OFFERED_PER_S = 20_000
OFFERED_SECONDS = 2.0
OFFERED_ROUNDS = 5
SLICE_SECONDS = 0.01
SWITCHES = 9
REPLACEMENTS = 21
"""Many, because a kill falls randomly between two renewals of the lease, which would dominate a median of few."""
LEASE_MS = 1_000
LOOK_MS = 20
GOALS = {"sync_ratio": 0.4, "async_ratio": 0.7, "isolation_ratio": 0.95}
SWITCH_MS_MAX = 100.0


class Routers:
    """A pair of processes; `one` is active first. With a witness, the pair takes over by itself."""

    def __init__(self, folder: Path, *, has_witness: bool = False) -> None:
        link, *controls = (free_port() for _ in range(3))
        voters = {name: free_port() for name in (*NAMES, WITNESS)}
        self.processes = []
        for number, name in enumerate(NAMES):
            voting = VotingConfig(
                witness=WITNESS,
                voters={other: f"{HOST}:{port}" for other, port in voters.items() if other != name},
                listen=LeaseAccess(port=voters[name]),
                lease_ms=LEASE_MS,
            )
            pair = LivePairConfig(
                routers=NAMES,
                link=PairAccess(port=link),
                clients=f"{HOST}:{controls[1 - number]}",
                voting=voting if has_witness else None,
            )
            control = RouterAccess(port=controls[number])
            self.processes.append(RouterProcess(folder, name, control=control, pair=pair, replicate_by="publisher"))
        access = LeaseAccess(port=voters[WITNESS])
        config = WitnessConfig(
            name=WITNESS, routers=NAMES, state_directory=str(folder / WITNESS), control=access, lease_ms=LEASE_MS
        )
        self.witness = NodeProcess(WITNESS, ("witness", "run"), config, folder) if has_witness else None

    @property
    def places(self) -> list[str]:
        return [each.place for each in self.processes]

    def wait_in_step(self) -> None:
        wait_for(lambda: all(self._state(each) == "in step" for each in self.processes), "the pair to be in step")

    @staticmethod
    def _state(router: RouterProcess) -> str:
        replication = router.status().replication
        return "" if replication is None else replication.state


@contextmanager
def running_pair(*, has_witness: bool = False) -> Iterator[Routers]:
    with disk_folder() as folder, ExitStack() as stack:
        routers = Routers(folder, has_witness=has_witness)
        if routers.witness is not None:
            stack.enter_context(routers.witness)
        for each in routers.processes:
            stack.enter_context(each)
        routers.wait_in_step()
        yield routers


def run() -> Iterator[Result]:
    with running_pair() as routers:
        yield from _copied(routers)
    with running_pair() as routers:
        yield _isolated(routers)
    with running_pair() as routers:
        yield _switched(routers)
    with running_pair(has_witness=True) as routers:
        yield _replaced(routers)


# The cost of copies


def _copied(routers: Routers) -> Iterator[Result]:
    """Measure in turns; each round begins when the other router has all messages."""
    payload = os.urandom(PAYLOAD_SIZE)
    rates: dict[Treatment, list[float]] = {treatment: [] for treatment in TREATMENTS}
    with open_assured(*routers.places) as assured, assured.publisher(window=IN_FLIGHT) as publisher:
        for number in range(ROUNDS + 1):
            for treatment in TREATMENTS:
                rate = _rate(publisher, payload, treatment)
                if number:  # the first round is a warm-up
                    rates[treatment].append(rate)
                assured.empty_endpoint(ORDERS.name)
                routers.wait_in_step()
    alone = statistics.median(rates["none"])
    for metric, treatment in (("sync_ratio", TREATMENTS[2]), ("async_ratio", TREATMENTS[1])):
        rate = statistics.median(rates[treatment])
        yield result(
            "assured",
            metric,
            rate / alone,
            "ratio",
            against=f"the goal; {rate:.0f} {treatment} messages/s compared with {alone:.0f} without copies",
            against_value=GOALS[metric],
            conditions=f"{CONDITIONS}; a pair of routers on one disk; one publisher with {IN_FLIGHT} in flight, "
            f"acknowledgements are counted, no consumer; medians of {ROUNDS} alternating rounds",
        )


def _rate(publisher: AssuredPublisher, payload: bytes, treatment: Treatment) -> float:
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < ROUND_SECONDS:
        for _ in range(PORTION):
            publisher.send(TOPIC, payload, replication=treatment)
        count += PORTION
    check(publisher.flush(PATIENCE_SECONDS), "messages are not acknowledged")
    return count / (time.perf_counter() - started)


# The cost of a stopped standby for messages without copies


def _isolated(routers: Routers) -> Result:
    """Measure alone and beside others, in turns; the standby is stopped in both cases, so that only the traffic
    differs.
    """
    payload = os.urandom(PAYLOAD_SIZE)
    ratios, beside_rates = [], []
    secondary = routers.processes[1].pid
    with (
        other_process(publish_synchronously, tuple(routers.places)) as others,
        open_assured(*routers.places) as assured,
        assured.publisher(window=4_096) as publisher,
    ):
        others.recv()
        os.kill(secondary, signal.SIGSTOP)
        try:
            for _ in range(OFFERED_ROUNDS):
                alone = _offered(publisher, payload)
                others.send("go")
                beside = _offered(publisher, payload)
                others.send("pause")
                check(others.recv() > 0, "no synchronous message was acknowledged")
                ratios.append(beside / alone)
                beside_rates.append(beside)
                assured.empty_endpoint(ORDERS.name)
        finally:
            os.kill(secondary, signal.SIGCONT)
            others.send("end")
    return result(
        "assured",
        "isolation_ratio",
        statistics.median(ratios),
        "ratio",
        against=f"the goal; {statistics.median(beside_rates):.0f} messages/s beside synchronous ones",
        against_value=GOALS["isolation_ratio"],
        conditions=f"{CONDITIONS}; {OFFERED_PER_S} messages without copies are offered per second, alone and beside a "
        f"publisher of synchronous messages with {IN_FLIGHT} in flight, with a stopped standby (SIGSTOP); "
        f"acknowledgements are counted; median of the ratios of {OFFERED_ROUNDS} alternating rounds",
    )


def _offered(publisher: AssuredPublisher, payload: bytes) -> float:
    """Return the acknowledged messages per second at the offered rate."""
    started, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < OFFERED_SECONDS:
        for _ in range(max(0, int(elapsed * OFFERED_PER_S) - count)):
            publisher.send(TOPIC, payload)
            count += 1
        time.sleep(SLICE_SECONDS)
    check(publisher.flush(PATIENCE_SECONDS), "messages are not acknowledged")
    return count / (time.perf_counter() - started)


def publish_synchronously(places: tuple[str, ...], pipe: Connection) -> None:
    """Runs in a process of its own: publishes between `go` and `pause`, until `end`."""
    payload = os.urandom(PAYLOAD_SIZE)
    with open_assured(*places) as assured:
        publisher = assured.publisher(window=IN_FLIGHT)
        publisher.publish(TOPIC, payload, replication="synchronous")
        pipe.send(0)
        while pipe.recv() == "go":
            count = 0
            while not pipe.poll():
                publisher.send(TOPIC, payload, replication="synchronous")
                count += 1
            pipe.recv()
            pipe.send(count)


# The duration of a takeover


def _switched(routers: Routers) -> Result:
    seconds = []
    with _consuming(routers) as (assured, queue):
        for number in range(SWITCHES):
            with open_assured(routers.places[1 - number % 2], role="operator") as operator:
                started = time.perf_counter()
                operator.switch()
                seconds.append(_first_delivery(assured, queue, NAMES[1 - number % 2]) - started)
            routers.wait_in_step()
    return result(
        "assured",
        "switch_ms_p50",
        1e3 * statistics.median(seconds),
        "ms",
        against=f"the goal; the longest of {SWITCHES}: {1e3 * max(seconds):.0f} ms",
        against_value=SWITCH_MS_MAX,
        conditions=f"{CONDITIONS}; from an operator's order to the standby until a consumer has its first message; "
        f"median of {SWITCHES} switches in alternating directions",
    )


def _replaced(routers: Routers) -> Result:
    seconds = []
    with _consuming(routers) as (assured, queue):
        for number in range(REPLACEMENTS):
            active, other = routers.processes[number % 2], NAMES[1 - number % 2]
            killed_ns = active.kill()
            seconds.append(_first_delivery(assured, queue, other) - killed_ns / 1e9 - LEASE_MS / 1e3)
            active.start()
            routers.wait_in_step()
    return result(
        "assured",
        "automatic_switch_ms_p50",
        1e3 * statistics.median(seconds),
        "ms",
        against=f"the goal; the longest of {REPLACEMENTS}: {1e3 * max(seconds):.0f} ms",
        against_value=SWITCH_MS_MAX,
        conditions=f"{CONDITIONS}; from kill -9 of the active router until a consumer has the first message from the "
        f"other router, without the lease time of {LEASE_MS} ms; the consumer polls every {LOOK_MS} ms; with a "
        f"witness; median of {REPLACEMENTS}",
    )


@contextmanager
def _consuming(routers: Routers) -> Iterator[tuple[Assured, AssuredEndpoint]]:
    """Consume without settling, so that the active router redelivers the message."""
    with (
        open_assured(*routers.places, backoff_ms=LOOK_MS, backoff_ms_max=LOOK_MS) as assured,
        assured.endpoint(ORDERS.name) as queue,
    ):
        with assured.publisher() as publisher:
            publisher.publish(TOPIC, os.urandom(PAYLOAD_SIZE), replication="synchronous")
        check(queue.next(PATIENCE_SECONDS) is not None, "nothing comes")
        routers.wait_in_step()
        yield assured, queue


def _first_delivery(assured: Assured, queue: AssuredEndpoint, router: str) -> float:
    """Return the time of the first delivery, on the monotonic clock."""
    message = queue.next(PATIENCE_SECONDS)
    now = time.perf_counter()
    check(message is not None and message.is_redelivered and assured.router == router, f"{router} did not take over")
    return now
