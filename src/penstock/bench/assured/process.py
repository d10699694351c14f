"""Message routers as real processes, for benches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from penstock.assured import EndpointConfig, Want
from penstock.assured.core.status import RouterStatus
from penstock.assured.node_config import RouterAccess, RouterNodeConfig
from penstock.bench.adapters import NodeProcess
from penstock.bench.brokers import HOST, free_port

PAYLOAD_SIZE = 100
IN_FLIGHT = 256
TOPIC = "orders.eu.new"
QUEUE_MAX = 16_000_000
ORDERS = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),), messages_max=QUEUE_MAX, bytes_max=2**36)
CONDITIONS = (
    f"routers and publishers in separate processes, TCP over loopback, a real disk; {PAYLOAD_SIZE}-byte payloads, each "
    "synced before its acknowledgement"
)


class RouterProcess(NodeProcess):
    """One `penstock router run`; it keeps its port when it is restarted."""

    def __init__(self, directory: Path, name: str = "router", **values: Any) -> None:
        settings = {"endpoints": (ORDERS,), "control": RouterAccess(port=free_port()), **values}
        self.config = RouterNodeConfig(name=name, state_directory=str(directory / name), **settings)
        super().__init__(name, ("router", "run"), self.config, directory)

    @property
    def place(self) -> str:
        return f"{HOST}:{self.config.control.port}"

    def status(self) -> RouterStatus:
        return msgspec.json.decode(self.page("/status"), type=RouterStatus)


@contextmanager
def disk_folder() -> Iterator[Path]:
    """Create a directory below the current one, because /tmp may be in memory."""
    with TemporaryDirectory(prefix="penstock-bench-", dir=".") as folder:
        yield Path(folder).resolve()
