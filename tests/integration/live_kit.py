"""Nodes of any kind with a control port, in this process or in processes of their own."""

import asyncio
import contextlib
import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from integration.command_kit import Running, running
from integration.filter_kit import Loop
from penstock.runtime.node import Node
from waiting import PATIENCE_SECONDS

Entered: TypeAlias = Callable[[], AbstractContextManager[None]]
"""All sockets created in the context are on a host (penstock.bench.hosts)."""


class Live(Protocol):
    @property
    def node(self) -> Node: ...

    @property
    def place(self) -> str: ...


LiveNode = TypeVar("LiveNode", bound=Live)


class NodeHere(Generic[LiveNode]):
    """A node in this process; its loop is in a thread."""

    def __init__(self, make: Callable[[], LiveNode]) -> None:
        self.loop = Loop()
        self._stop: asyncio.Event
        try:
            self.node = self.loop.run(self._start(make))
        except BaseException:
            self.loop.close()
            raise
        self._ended = asyncio.run_coroutine_threadsafe(self.node.node.run(self._stop), self.loop.loop)

    async def _start(self, make: Callable[[], LiveNode]) -> LiveNode:
        self._stop = asyncio.Event()
        node = make()
        await node.node.start()
        return node

    @property
    def place(self) -> str:
        return self.node.place

    def close(self) -> None:
        self.loop.loop.call_soon_threadsafe(self._stop.set)
        self._ended.result(PATIENCE_SECONDS)
        self.loop.close()


class NodeProcess:
    """A node in a process of its own, started by this command; the process can be killed and restarted in the same
    place. It runs on another host, if `entered` leads there."""

    def __init__(
        self, command: tuple[str, ...], config: Any, directory: Path, entered: Entered = contextlib.nullcontext
    ) -> None:
        self.config = config
        self.path = directory / f"{config.name}.toml"
        self.port: int = config.control.port
        self._command = command
        self._entered = entered
        self._stack = ExitStack()
        self.process: Running
        self.start()

    @property
    def place(self) -> str:
        return f"{self.config.control.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        access = msgspec.structs.replace(self.config.control, port=self.port)
        write_toml(self.path, msgspec.structs.replace(self.config, control=access))
        with self._entered():
            self.process = self._stack.enter_context(running(*self._command, "--config", str(self.path)))
        self.process.wait_for_output("control_port")
        self.facts = json.loads(self.process.out.splitlines()[0])
        self.port = self.facts["control_port"]

    def page(self, path: str) -> str:
        """The content of the node's page, also with an error status."""
        try:
            with self._entered(), urllib.request.urlopen(self.facts["url"] + path, timeout=PATIENCE_SECONDS) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()

    def kill(self) -> None:
        self.process.process.kill()
        self.process.process.wait(PATIENCE_SECONDS)

    def stop(self) -> None:
        """Stop the node in order, as an operator does."""
        self.process.process.send_signal(signal.SIGTERM)
        assert self.process.process.wait(PATIENCE_SECONDS) == 0, self.process.err

    def close(self) -> None:
        self._stack.close()


def write_toml(path: Path, config: msgspec.Struct) -> None:
    """JSON's strings, numbers, lists and inline tables are valid TOML, except for the colons."""

    def text(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{key} = {text(each)}" for key, each in value.items() if each is not None) + " }"
        if isinstance(value, list | tuple):
            return "[" + ", ".join(map(text, value)) + "]"
        return json.dumps(value)

    tables = msgspec.to_builtins(config)
    path.write_text("".join(f"{key} = {text(value)}\n" for key, value in tables.items() if value is not None))
