"""Message routers, their clients, and what happens to them: all of it by a seed, and judged at the end."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path

from integration.assured_kit import client_of
from judge.checker import ACKNOWLEDGED, Rules, violations
from judge.faults import Fault
from judge.history import Fault as FaultLine
from judge.history import History, Wanted, read_history
from judge.workload import DEAD, FILLS, WORK, Consumer, Publisher, Reader, Transactor, Worker
from penstock.assured import EndpointConfig, Want
from penstock.assured.application import Assured
from penstock.journal import JournalConfig
from waiting import PATIENCE_SECONDS, wait_until

ENDPOINTS = (
    EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),), consumers="exclusive"),
    EndpointConfig(name="audit", wants=(Want(topics=("orders.>", f"{FILLS}.>")),)),
    EndpointConfig(name=WORK, wants=(Want(topics=(f"{WORK}.>",)),)),
    EndpointConfig(name=FILLS, wants=(Want(topics=(f"{FILLS}.>",)),), consumers="exclusive"),
)
RULES = Rules(
    wants={
        "orders": frozenset({"orders"}),
        "audit": frozenset({"orders", FILLS}),
        WORK: frozenset({WORK}),
        FILLS: frozenset({FILLS}),
    },
    exclusive=frozenset({"orders", FILLS}),
    kept=ACKNOWLEDGED,
)
JOURNAL = JournalConfig(preallocate_bytes=0, segment_bytes=262_144, gather_bytes_max=65_536, linger_us=0, retry_ms=20)
"""Small segments: the log is cleaned many times, and a limit on the size of files is met soon."""

SETTINGS = {"journal": JOURNAL, "section_bytes": 65_536, "cache_bytes": 1_048_576, "message_bytes_max": 16_384}
LINES_BETWEEN = 300
HELD_SECONDS = 1.5


class Scene:
    """Clients of the routers at these places; `transacting`: what those want who consume and publish as one."""

    def __init__(self, directory: Path, places: tuple[str, ...], seed: int, transacting: tuple[Wanted, Wanted]) -> None:
        self.places = places
        self.seed = seed
        self.chance = random.Random(seed)
        self.path = directory / "history"
        self.history = History(self.path)
        common = (places, seed, self.history)
        self.publishers: list[Worker] = [
            Publisher("synchronous", *common, "synchronous"),
            Publisher("asynchronous", *common, "asynchronous"),
            Publisher("mixed", *common, "none", "asynchronous", "synchronous"),
        ]
        self.readers: list[Reader] = [
            Consumer("orders-a", *common, "orders"),
            Consumer("orders-b", *common, "orders"),
            Consumer("audit-a", *common, "audit"),
            Consumer("audit-b", *common, "audit"),
            Consumer("fills", *common, FILLS),
            Consumer("dead", *common, DEAD),
            Transactor("transactor-a", *common, transacting[0]),
            Transactor("transactor-b", *common, transacting[1]),
        ]
        for worker in (*self.publishers, *self.readers):
            worker.start()

    def torment(self, faults: Sequence[Fault], times: int) -> None:
        """Each fault lasts for a while, ends, and the next comes when the clients have got on."""
        for _ in range(times):
            fault = self.chance.choice(faults)
            before = self.history.lines
            wait_until(
                lambda before=before: self._has_failed() or self.history.lines > before + LINES_BETWEEN, "progress"
            )
            self.inflict(fault)

    def inflict(self, fault: Fault) -> None:
        fault.begin()
        self._tell(fault, fault.name)
        try:
            threading.Event().wait(self.chance.random() ** 2 * HELD_SECONDS)  # how long it lasts is part of the fault
        finally:
            fault.end()
            self._tell(fault, f"no longer {fault.name}")

    def _tell(self, fault: Fault, what: str) -> None:
        self.history.write(FaultLine(what=what, where=fault.router.config.name))

    def end_publishing(self) -> None:
        for worker in self.publishers:
            worker.finish()
        for reader in self.readers:
            reader.is_draining = True

    def consume_all(self) -> None:
        with client_of(*self.places) as client:
            wait_until(lambda: self._has_failed() or self._is_empty(client), "the queues to be empty")

    def end(self) -> None:
        for reader in self.readers:
            reader.finish()

    def judge(self, rules: Rules = RULES) -> None:
        """What there is so far."""
        found = violations(read_history(self.path), rules)
        assert not found, f"{len(found)} violations with seed {self.seed}: " + "\n".join(found[:20])

    def close(self) -> None:
        """However it ended: nobody goes on."""
        for worker in (*self.publishers, *self.readers):
            worker.finishing.set()
        for worker in (*self.publishers, *self.readers):
            worker.join(PATIENCE_SECONDS)
        self.history.close()

    def _has_failed(self) -> bool:
        failed = [worker for worker in (*self.publishers, *self.readers) if worker.failure is not None]
        for worker in failed:
            raise AssertionError(f"{worker.name} failed") from worker.failure
        return False

    @staticmethod
    def _is_empty(client: Assured) -> bool:
        return all(each.messages == 0 for each in client.endpoints())
