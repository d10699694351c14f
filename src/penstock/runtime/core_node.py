"""CoreNode: a node whose logic is one core. Runs the core, waits for the first tokens and keeps a list of
happenings."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from penstock.base.clock import Clock
from penstock.base.core import Core, Tick
from penstock.base.errors import PenstockError
from penstock.base.log import Logger
from penstock.net.live.event_loop import CoreRunner
from penstock.runtime.access import watch_expiry
from penstock.runtime.happening import Happening
from penstock.runtime.node import Node
from penstock.security.core.access_control import AccessControl, P

TOKEN_SECONDS = 5.0
HAPPENINGS_MAX = 200

E = TypeVar("E")
I = TypeVar("I")  # noqa: E741


class CoreNode(Generic[E, I]):
    """Runs the core as a part of the node, in the loop's thread. A core that fails ends the node."""

    def __init__(
        self,
        node: Node,
        core: Core[E | Tick, I],
        carry_out: Callable[[I], None],
        log: Logger,
        *,
        clock: Clock | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self.runner: CoreRunner[E, I] = CoreRunner(core, carry_out, clock=clock, after=after)
        self.runner.failed.add_done_callback(lambda failed: node.fail(failed.result()))
        self._node = node
        self._log = log
        self._happenings: deque[Happening] = deque(maxlen=HAPPENINGS_MAX)

    def tell(self, event: E) -> PenstockError | None:
        """Handle an event. Return the error if the core refuses the event, which is a mistake of the event's sender."""
        try:
            self.runner.handle(event)
        except PenstockError as error:
            self._log.warning("event_refused", what=type(event).__name__, code=error.code, error=str(error))
            return error
        return None

    @property
    def has_failed(self) -> bool:
        return self.runner.failed.done()

    # Tokens

    async def await_tokens(self) -> None:
        """Start step: wait up to TOKEN_SECONDS for the token state of the administration server."""
        if (tokens := self._node.tokens) is not None:
            await asyncio.to_thread(tokens.wait, TOKEN_SECONDS)

    def watch_rights(self, access: AccessControl[P], end: Callable[[P, PenstockError], None]) -> None:
        """Call `end` for each party whose rights expire, while the node runs."""
        self._node.add_task(lambda: watch_expiry(access, end))

    # Happenings

    def note(self, what: str, values: Mapping[str, Any], *, direction: str = "", party: str = "") -> None:
        self._happenings.append(Happening(time.time_ns(), what, values, direction, party))

    def happenings(self) -> list[Happening]:
        """The newest happenings, oldest first. May be called in any thread."""
        return list(self._happenings)
