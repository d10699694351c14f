"""A process of clients of message routers: `python -m judge.clients ORDERS`, in JSON.

Lines of its input: `drain`: from now on every delivery is acknowledged; `finish`: end when all begun work is done. The
process also ends with its input, and with status 1 when a client meets an unexpected result.
"""

import os
import sys
from pathlib import Path

import msgspec

from judge.history import History, Wanted
from judge.workload import DEAD, FILLS, Access, Consumer, Publisher, Reader, Transactor, Worker


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    publishers: dict[str, tuple[Wanted, ...]] = {}
    """The protections of a publisher's messages, by its name; each message has one of them."""

    consumers: dict[str, str] = {}
    """The endpoint of a consumer, by its name."""

    transactors: dict[str, Wanted] = {}
    access: Access
    seed: int
    life: int = 1
    """Number of the client among those of this name, because every client's name is used once."""

    history: str = ""
    is_draining: bool = False


PUBLISHERS: dict[str, tuple[Wanted, ...]] = {
    "synchronous": ("synchronous",),
    "asynchronous": ("asynchronous",),
    "mixed": ("none", "asynchronous", "synchronous"),
}


def all_orders(access: Access, seed: int, transacting: tuple[Wanted, Wanted]) -> list[Orders]:
    """Three processes: one publishes, two consume, and transact with the protections `transacting`."""
    left = {"orders-a": "orders", "audit-a": "audit"}
    right = {"orders-b": "orders", "audit-b": "audit", "fills": FILLS, "dead": DEAD}
    return [
        Orders(name="publishers", publishers=PUBLISHERS, access=access, seed=seed),
        Orders(name="left", consumers=left, transactors={"transactor-a": transacting[0]}, access=access, seed=seed),
        Orders(name="right", consumers=right, transactors={"transactor-b": transacting[1]}, access=access, seed=seed),
    ]


def workers_of(orders: Orders, history: History) -> list[Worker]:
    def common(name: str) -> tuple[str, Access, str, History]:
        return f"{name}-{orders.life}", orders.access, f"{orders.seed} {orders.life} {name}", history

    return [
        *(Publisher(*common(name), *wanted) for name, wanted in orders.publishers.items()),
        *(Consumer(*common(name), endpoint) for name, endpoint in orders.consumers.items()),
        *(Transactor(*common(name), wanted) for name, wanted in orders.transactors.items()),
    ]


def main() -> None:
    orders = msgspec.json.decode(sys.argv[1], type=Orders)
    history = History(Path(orders.history))
    workers = workers_of(orders, history)
    readers = [each for each in workers if isinstance(each, Reader)]
    for reader in readers:
        reader.is_draining = orders.is_draining
    for worker in workers:
        worker.start()
    for line in sys.stdin:
        if line == "drain\n":
            for reader in readers:
                reader.is_draining = True
        if line == "finish\n":
            for worker in workers:
                worker.finishing.set()
            for worker in workers:
                worker.join()
            return
    os._exit(1)  # the parent process is gone


if __name__ == "__main__":
    main()
