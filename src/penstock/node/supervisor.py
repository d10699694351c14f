"""Supervises the processes of a plant: collects their reports, notices deaths, shuts them down."""

import selectors
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.node.member import Member
from penstock.node.orders import OrderListener
from penstock.node.process import STOP
from penstock.node.template import Template

STOP_SECONDS = 20.0
"""Time limit for processes to shut down."""


class Supervisor:
    """Leaving its `with` block ends every process. If the supervisor's process dies, the others end by themselves."""

    def __init__(self, ended: Callable[[Member], None] = lambda member: None, *, logs: Path | None = None) -> None:
        """`ended` is called when a process has ended by itself. Logs of processes go to files in the existing directory
        `logs`; by default, to standard error."""
        self.members: list[Member] = []
        self._logs = logs
        self._listeners: list[OrderListener] = []
        self._ended = ended
        self._selector = selectors.DefaultSelector()

    def start(
        self,
        name: str,
        main: str,
        arguments: Sequence[str],
        take: Callable[[bytes], None],
        *,
        template: Template | None = None,
    ) -> Member:
        """Start a process, as a copy of the template if there is one. Its entry point is `main` (MODULE:FUNCTION), and
        its reports go to `take`."""
        log = None if self._logs is None else self._logs / f"{name}.log"
        member = Member(name, main, arguments, take, log=log, template=template)
        self.members.append(member)
        self._selector.register(member, selectors.EVENT_READ, member)
        return member

    def watch(self, listener: OrderListener) -> None:
        """Also serve orders; the listener is closed together with the supervisor."""
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def poll(self, timeout: float) -> None:
        """Read reports, waiting up to `timeout` seconds for the first one."""
        for key, _ in self._selector.select(timeout):
            member: Member | OrderListener = key.data
            if isinstance(member, OrderListener):
                member.serve()
            elif not member.read():
                self._selector.unregister(key.fileobj)
                member.reap()
                self.members.remove(member)
                self._ended(member)

    def wait(self, condition: Callable[[], bool], seconds: float, is_over: Callable[[], bool] = lambda: False) -> bool:
        """Poll until the condition holds. Return True if it does."""
        deadline = time.monotonic() + seconds
        while not condition():
            if is_over() or time.monotonic() >= deadline:
                return False
            self.poll(0.05)
        return True

    def stop(self, members: list[Member], seconds: float = STOP_SECONDS) -> list[str]:
        """Shut down these processes and wait; kill and return the names of those that do not end in time."""
        for member in members:
            member.order(STOP)
        self.wait(lambda: not any(member.is_running for member in members), seconds)
        late = [member for member in members if member.is_running]
        for member in late:
            member.kill()
        self.wait(lambda: not any(member.is_running for member in late), seconds)
        return [member.name for member in late]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for member in self.members:
            member.kill()
            member.close()
        self.members.clear()
        for listener in self._listeners:
            listener.close()
        self._selector.close()
