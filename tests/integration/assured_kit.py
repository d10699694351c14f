"""Message routers, in this process or in processes of their own."""

from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from children import resume, suspend
from integration.live_kit import Entered, NodeHere, NodeProcess
from penstock.assured import EndpointConfig, Want
from penstock.assured.client import Assured, open_assured
from penstock.assured.core.status import RouterStatus
from penstock.assured.live.driver import LiveRouter
from penstock.assured.node_config import RouterAccess, RouterNodeConfig
from waiting import PATIENCE_SECONDS

ORDERS = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),))


def router_config(directory: Path, *endpoints: EndpointConfig, **values: Any) -> RouterNodeConfig:
    settings = {"name": "router", "state_directory": str(directory), "endpoints": endpoints or (ORDERS,), **values}
    settings.setdefault("reserve_bytes", 2**20)  # many routers are created, and their directories stay for a while
    return RouterNodeConfig(**{"control": RouterAccess(port=0), **settings})


def client_of(*places: str, **options: Any) -> Assured:
    quick = {"backoff_ms": 10, "backoff_ms_max": 100, "answer_seconds": PATIENCE_SECONDS}
    return open_assured(*places, **{**quick, **options})


class RouterHere(NodeHere[LiveRouter]):
    def __init__(self, config: RouterNodeConfig) -> None:
        super().__init__(lambda: LiveRouter(config))

    @property
    def router(self) -> LiveRouter:
        return self.node


def router_here(config: RouterNodeConfig) -> "closing[RouterHere]":
    return closing(RouterHere(config))


class RouterProcess(NodeProcess):
    config: RouterNodeConfig

    def __init__(self, config: RouterNodeConfig, directory: Path, entered: Entered = nullcontext) -> None:
        super().__init__(("router", "run"), config, directory, entered)

    def pause(self) -> None:
        suspend(self.pid)

    def resume(self) -> None:
        resume(self.pid)

    def status(self) -> RouterStatus:
        return msgspec.json.decode(self.page("/status"), type=RouterStatus)

    def close(self) -> None:
        if self.process.process.poll() is None:
            self.resume()
        super().close()


def router_process(config: RouterNodeConfig, directory: Path) -> "closing[RouterProcess]":
    return closing(RouterProcess(config, directory))
