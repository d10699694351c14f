"""Watches over the processes of a plant: gathers what they tell, notices when one dies, ends them all."""

import selectors
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from penstock.node.member import Member
from penstock.node.orders import OrderListener
from penstock.node.process import STOP

STOP_SECONDS = 20.0
"""How long processes may take to end in good order."""


class Supervisor:
    """Leaving its `with` block ends every process; should this process die itself, the others end on their own."""

    def __init__(self, ended: Callable[[Member], None] = lambda member: None) -> None:
        """`ended` is called when a process has ended by itself."""
        self.members: list[Member] = []
        self._listeners: list[OrderListener] = []
        self._ended = ended
        self._selector = selectors.DefaultSelector()

    def add(self, member: Member) -> Member:
        self.members.append(member)
        self._selector.register(member, selectors.EVENT_READ, member)
        return member

    def watch(self, listener: OrderListener) -> None:
        """Serve orders, too; the listener is closed with everything else."""
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def poll(self, timeout: float) -> None:
        """Take in what the processes tell, waiting at most so many seconds for the first of them."""
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
        """Poll until the condition holds; whether it does."""
        deadline = time.monotonic() + seconds
        while not condition():
            if is_over() or time.monotonic() >= deadline:
                return False
            self.poll(0.05)
        return True

    def stop(self, members: list[Member], seconds: float = STOP_SECONDS) -> list[str]:
        """Order these processes to end, and wait for it; those that do not are killed and named."""
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
