"""Message routers, in this process or in ones of their own."""

import asyncio
import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from integration.command_kit import Running, running
from integration.filter_kit import Loop
from integration.tree_kit import write_toml
from penstock.assured import EndpointConfig, Want
from penstock.assured.application import Assured, open_assured
from penstock.assured.driver import LiveRouter
from penstock.assured.node import RouterAccess, RouterNodeConfig
from penstock.assured.status import RouterStatus
from waiting import PATIENCE_SECONDS

Entered: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Whatever is made in it is on a host (penstock.bench.hosts)."""

ORDERS = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),))


def router_config(directory: Path, *endpoints: EndpointConfig, **values: Any) -> RouterNodeConfig:
    settings = {"name": "router", "state_directory": str(directory), "endpoints": endpoints or (ORDERS,), **values}
    settings.setdefault("reserve_bytes", 2**20)  # many routers are made, and their disks stay for a while
    return RouterNodeConfig(**{"control": RouterAccess(port=0), **settings})


def client_of(*places: str, **options: Any) -> Assured:
    quick = {"backoff_ms": 10, "backoff_ms_max": 100, "answer_seconds": PATIENCE_SECONDS}
    return open_assured(*places, **{**quick, **options})


class RouterHere:
    """A router in this process; its loop is in a thread."""

    def __init__(self, config: RouterNodeConfig) -> None:
        self.loop = Loop()
        self._stop: asyncio.Event
        try:
            self.router = self.loop.run(self._start(config))
        except BaseException:
            self.loop.close()
            raise
        self._ended = asyncio.run_coroutine_threadsafe(self.router.run(self._stop), self.loop.loop)

    async def _start(self, config: RouterNodeConfig) -> LiveRouter:
        self._stop = asyncio.Event()
        router = LiveRouter(config)
        await router.start()
        return router

    @property
    def place(self) -> str:
        return self.router.place

    def close(self) -> None:
        self.loop.loop.call_soon_threadsafe(self._stop.set)
        self._ended.result(PATIENCE_SECONDS)
        self.loop.close()


@contextlib.contextmanager
def router_here(config: RouterNodeConfig) -> Iterator[RouterHere]:
    made = RouterHere(config)
    try:
        yield made
    finally:
        made.close()


class RouterProcess:
    """A router in a process of its own, which can be killed and started again in the same place; on another host, if
    `entered` leads there."""

    def __init__(self, config: RouterNodeConfig, directory: Path, entered: Entered = contextlib.nullcontext) -> None:
        self.config = config
        self._entered = entered
        self.path = directory / f"{config.name}.toml"
        self._stack = ExitStack()
        self._process: Running | None = None
        self.port = config.control.port
        self.start()

    @property
    def place(self) -> str:
        return f"{self.config.control.host}:{self.port}"

    def start(self) -> None:
        access = msgspec.structs.replace(self.config.control, port=self.port)
        write_toml(self.path, msgspec.structs.replace(self.config, control=access))
        with self._entered():
            self._process = self._stack.enter_context(running("router", "run", "--config", str(self.path)))
        self._process.wait_for_output("control_port")
        self.facts = json.loads(self._process.out.splitlines()[0])
        self.port = self.facts["control_port"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        assert self._process is not None
        self._process.process.kill()
        self._process.process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """In order, as its operator does."""
        assert self._process is not None
        self._process.process.send_signal(signal.SIGTERM)
        assert self._process.process.wait(PATIENCE_SECONDS) == 0, self._process.err

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def status(self) -> RouterStatus:
        url = f"{self.facts['url']}/status"
        with self._entered(), urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return msgspec.json.decode(answer.read(), type=RouterStatus)

    def close(self) -> None:
        if self._process is not None and self._process.process.poll() is None:
            self.resume()
        self._stack.close()


@contextlib.contextmanager
def router_process(config: RouterNodeConfig, directory: Path) -> Iterator[RouterProcess]:
    made = RouterProcess(config, directory)
    try:
        yield made
    finally:
        made.close()
