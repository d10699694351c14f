"""A live router's side of the lease: what it promised on the disk, the other voters on the network. The core is the
pair's."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from penstock.assured.leasing import LeaseLinks
from penstock.assured.node import VotingConfig
from penstock.assured.pairing import PairEvent
from penstock.assured.remembering import LeaseMemory
from penstock.assured.status import Voting
from penstock.assured.voting import Heard, Keep, Kept, Memory, Tell
from penstock.base.counters import Counters
from penstock.base.log import logger

log = logger("assured.lease")


class RouterLease:
    """`tell` gives an event to the core."""

    def __init__(
        self,
        voting: VotingConfig,
        routers: tuple[str, str],
        name: str,
        directory: Path,
        tell: Callable[[PairEvent], None],
        counters: Counters,
    ) -> None:
        self.config = voting.lease(routers)
        self._tell = tell
        self._memory = LeaseMemory(directory, name, self.config, counters)
        self._links = LeaseLinks(
            self.config,
            name,
            voting.listen,
            lambda voter, message: tell(Heard(voter, message)),
            counters,
            voting.voters,
        )

    def open(self) -> Memory:
        """What this router has promised."""
        return self._memory.open()

    async def start(self) -> None:
        await self._links.start()

    async def close(self) -> None:
        await self._links.close()
        await self._memory.close()

    @property
    def tasks(self) -> list["asyncio.Task[None]"]:
        return self._links.tasks

    def carry_out(self, instruction: Tell | Keep) -> None:
        match instruction:
            case Tell(to, message):
                self._links.tell(to, message)
            case Keep(memory):
                log.info("promises", epoch=memory.epoch, holder=memory.holder, alone=memory.alone)
                self._memory.keep(memory, lambda: self._tell(Kept()))

    def status(self) -> Voting:
        return Voting(
            self.config.witness, self._links.in_touch(), self._memory.is_storing, self._links.clocks_apart_ms()
        )
