"""A live voter's side of the lease: its promises on the disk, its connections to the other voters. The core of the
pair, or of the witness, decides."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from penstock.assured.core.lease.protocol import Heard, Keep, Kept, LeaseConfig, Memory, Tell
from penstock.assured.core.status import Voting
from penstock.assured.live.lease_links import LeaseLinks
from penstock.assured.live.lease_memory import LeaseMemory
from penstock.assured.node_config import LeaseAccess
from penstock.base.counters import Counters
from penstock.base.log import logger

log = logger("assured.lease")


class LiveVoter:
    """`places` are those of voters that this one asks. `tell` gives an event to the core; `reached` is called when a
    connection to one of these voters is established."""

    def __init__(
        self,
        config: LeaseConfig,
        name: str,
        access: LeaseAccess,
        places: Mapping[str, str],
        directory: Path,
        tell: Callable[[Heard | Kept], None],
        counters: Counters,
        *,
        reached: Callable[[str], None] = lambda voter: None,
    ) -> None:
        self.config = config
        self._tell = tell
        self._memory = LeaseMemory(directory, name, config, counters)
        self._links = LeaseLinks(
            config,
            name,
            access,
            lambda voter, message: tell(Heard(voter, message)),
            counters,
            places,
            reached=reached,
        )

    def open(self) -> Memory:
        """The promises of this voter."""
        return self._memory.open()

    async def start(self) -> None:
        await self._links.start()

    async def close(self) -> None:
        await self._links.close()
        await self._memory.close()

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        return self._links.tasks

    @property
    def port(self) -> int:
        return self._links.port

    def carry_out(self, instruction: Tell | Keep) -> None:
        match instruction:
            case Tell(to, message):
                self._links.tell(to, message)
            case Keep(memory):
                log.info("promises", epoch=memory.epoch, holder=memory.holder, alone=memory.degraded)
                self._memory.keep(memory, lambda: self._tell(Kept()))

    def status(self) -> Voting:
        """May be called in any thread."""
        return Voting(
            self.config.witness, self._links.in_touch(), self._memory.is_storing, self._links.clocks_apart_ms()
        )
