"""A node's data path: a failure of one consumer affects only that consumer."""

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from penstock.base.clock import random_bytes
from penstock.base.errors import PenstockError, SharedMemoryError
from penstock.engine import control
from penstock.engine.core.events import Subscribe
from penstock.net.live.handover import Handover
from penstock.plant.config import NodeConfig
from penstock.plant.core.access import Consumer
from penstock.plant.live.data_path import DataPath
from unit.engine_kit import NOW, QUOTE, engine, record


class Owner:
    def __init__(self) -> None:
        self.ended: list[tuple[int, PenstockError]] = []
        self.regions: list[int] = []

    def events_ready(self, consumer: int, data: bytes) -> None:
        """A node without sessions."""

    def tell(self, consumer: int, message: control.OpenRegion) -> None:
        self.regions.append(consumer)

    def end(self, consumer: int, error: PenstockError) -> None:
        self.ended.append((consumer, error))

    def wanted(self, topics: Sequence[str]) -> None: ...

    def unwanted(self, topics: Sequence[str]) -> None: ...

    def failed(self, error: Exception) -> None: ...


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_region_that_cannot_be_created_disconnects_only_its_consumer() -> None:
    owner, core = Owner(), engine()
    handover = Handover(f"@penstock-test-{random_bytes(8).hex()}")
    data = DataPath(NodeConfig(name="node"), core, None, owner, handover)
    try:
        for number in (0, 1):
            login = control.Login(f"consumer-{number}", "local")
            data.attach(Consumer(number, login, "127.0.0.1", ("critical", "adaptive")))
        core.publish(b"md.a", QUOTE, record(1), NOW)
        data.handle(Subscribe(0, 1, ["md.a"], "adaptive"))
        with no_more_files():
            data.handle(Subscribe(1, 1, ["md.a"], "adaptive"))
        assert owner.regions == [0]
        assert [(consumer, type(error)) for consumer, error in owner.ended] == [(1, SharedMemoryError)]
        assert core.publish(b"md.a", QUOTE, record(2), NOW)
    finally:
        data.stop()
        handover.close()
