"""StreamHandle: the part that a subscription and a publisher have in common, as the application holds them.

It runs a core in the thread of an asyncio loop, its own or one that it shares, from the constructor to close().
"""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.base.counters import Counters
from penstock.base.errors import LocalProtocolError, PenstockError
from penstock.net.core.client_session import Over
from penstock.net.guard import Guard
from penstock.net.live.loop_condition import LoopCondition
from penstock.net.live.loop_thread import LoopThread
from penstock.tree.client.core.events import InfoHeard
from penstock.tree.client.core.tree_client import TreeClient
from penstock.tree.client.core_runner import TreeCoreRunner
from penstock.tree.core.infostream import Info


class StreamHandle:
    """A subclass makes its core, calls _run(), and overrides _carry_out() for the instructions of that core."""

    def __init__(
        self,
        what: str,
        counters: Counters,
        *,
        thread: LoopThread | None,
        on_infostream: Callable[[str, Info], None] | None,
    ) -> None:
        self.counters = counters
        self._what = what
        self._on_infostream = on_infostream
        self._own_thread = LoopThread(f"penstock-{what}") if thread is None else None
        self._thread = thread or self._own_thread
        self._changed = LoopCondition()
        """Guards the core, and the state that the application's threads and the loop's thread share."""
        self._error: PenstockError | None = None
        self._is_closed = False

    def _run(self, core: TreeClient, guard: Guard | None, linger_us: int | None = None) -> None:
        assert self._thread is not None
        self._client = core
        self._thread.start(self._start(core, guard or Guard(), linger_us)).result()

    async def _start(self, core: TreeClient, guard: Guard, linger_us: int | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._runner = TreeCoreRunner(
            core, core.name, guard, self.counters, self._carry_out, self._changed, linger_us=linger_us
        )
        self._runner.runner.failed.add_done_callback(self._core_failed)
        self._runner.start()

    # For the application

    @property
    def agent(self) -> str:
        """The name of the agent that it is connected to; empty: none at the moment."""
        welcome = self._client.welcome
        return "" if welcome is None else welcome.agent

    @property
    def is_over(self) -> bool:
        """True if it was closed or has failed."""
        return self._is_closed or self._error is not None

    def renew(self, token: str) -> None:
        """Use a newer token of the administration server."""
        self._loop.call_soon_threadsafe(self._renew, token)

    def fail(self, error: PenstockError) -> None:
        """End the stream with this error."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()

    def cancel(self) -> None:
        self.close()

    def close(self) -> None:
        with self._changed:
            if self._is_closed:
                return
            self._is_closed = True
            self._changed.notify_all()
        assert self._thread is not None
        self._thread.start(self._runner.close()).result()
        if self._own_thread is not None:
            self._own_thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    # The loop's thread

    def _renew(self, token: str) -> None:
        with self._changed:
            self._runner.carry_out_all(self._client.renew(token))

    def _carry_out(self, instruction: Any) -> None:
        match instruction:
            case InfoHeard(agent, info):
                if self._on_infostream is not None:
                    self._on_infostream(agent, info)
            case Over(error):
                self.fail(error)

    def _core_failed(self, failed: "asyncio.Future[Exception]") -> None:
        self.fail(LocalProtocolError(f"the {self._what} failed: {failed.result()!r}"))


def split_options(config: type[Any], options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options that are fields of `config`, and the others."""
    names = config.__struct_fields__
    return (
        {key: value for key, value in options.items() if key in names},
        {key: value for key, value in options.items() if key not in names},
    )
