"""Message routers, their clients, and their faults: all from one seed, and checked at the end."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from integration.live_kit import Entered
from judge.checker import ACKNOWLEDGED, Rules, violations
from judge.crews import Crew
from judge.faults import Fault
from judge.history import Fault as FaultLine
from judge.history import History, read_history
from judge.workload import FILLS, WORK, Access
from penstock.assured import EndpointConfig, Want
from penstock.assured.client import Assured
from penstock.journal import JournalConfig
from waiting import wait_until

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
"""Small segments: the log is cleaned many times, and a limit on the size of files is reached soon."""

SETTINGS = {
    "replicate_by": "publisher",
    "journal": JOURNAL,
    "section_bytes": 65_536,
    "cache_bytes": 1_048_576,
    "message_bytes_max": 16_384,
}
BYTES_BETWEEN = 25_000
HELD_SECONDS = 2.0


class Scene:
    """Crews of clients of the routers at the addresses `access`; `entered` leads to the hosts of the clients."""

    def __init__(
        self, directory: Path, access: Access, seed: int, crews: Sequence[Crew], entered: Entered = nullcontext
    ) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.crews = crews
        self._access = access
        self._entered = entered
        self._path = directory / "history"
        self._history = History(self._path)

    def torment(self, faults: Sequence[Fault], times: int, also: Sequence[Fault] = ()) -> None:
        """Each fault lasts for a while, some together with one of the faults in `also`, and the next one begins when
        the clients have made progress."""
        for _ in range(times):
            fault = self.chance.choice(faults)
            extra = self.chance.choice([None, *(each for each in also if each is not fault)])
            before = self._bytes()
            wait_until(lambda before=before: self._bytes() > before + BYTES_BETWEEN, "progress")
            self.inflict(fault, *filter(None, [extra]))

    def inflict(self, *faults: Fault) -> None:
        """Several faults that begin together."""
        with ExitStack() as stack:
            for fault in faults:
                stack.enter_context(self._inflicted(fault))
            threading.Event().wait(self.chance.random() ** 2 * HELD_SECONDS)  # the duration is part of the fault

    @contextmanager
    def _inflicted(self, fault: Fault) -> Iterator[None]:
        fault.begin()
        self._history.write(FaultLine(what=fault.name))
        try:
            yield
        finally:
            fault.end()
            self._history.write(FaultLine(what=f"no longer {fault.name}"))

    def end_publishing(self) -> None:
        for crew in self.crews:
            crew.drain()
        self.crews[0].finish()

    def consume_all(self) -> None:
        with self._entered(), self._access.session() as client:
            wait_until(lambda: self._check() or self._is_empty(client), "the queues to be empty")

    def end(self) -> None:
        for crew in self.crews[1:]:
            crew.finish()

    def judge(self, rules: Rules = RULES) -> None:
        """Judge the history so far."""
        found = violations(read_history(self._path, *self._histories()), rules)
        assert not found, f"{len(found)} violations with seed {self.seed}: " + "\n".join(found[:20])

    def close(self) -> None:
        for crew in self.crews:
            crew.close()
        self._history.close()

    def _histories(self) -> list[Path]:
        return [path for crew in self.crews for path in crew.histories]

    def _bytes(self) -> int:
        """Size of the clients' histories."""
        self._check()
        return sum(path.stat().st_size for path in self._histories())

    def _check(self) -> None:
        for crew in self.crews[1:]:
            crew.check()

    @staticmethod
    def _is_empty(client: Assured) -> bool:
        return all(each.messages == 0 for each in client.endpoints())
