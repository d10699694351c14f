"""Voters for a lease, on real sockets and a real disk, without routers."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock.assured.core.lease.keeper import LeaseKeeper
from penstock.assured.core.lease.protocol import (
    Fit,
    Heard,
    Keep,
    Kept,
    LeaseAcquired,
    LeaseConfig,
    LeaseEvent,
    LeaseInstruction,
    LeaseLost,
    Message,
    Reached,
    Tell,
)
from penstock.assured.live.lease_links import LeaseLinks
from penstock.assured.live.lease_memory import LeaseMemory
from penstock.assured.live.witness import LiveWitness
from penstock.assured.node_config import LeaseAccess, WitnessConfig
from penstock.base.clock import SystemClock, SystemRandomness
from penstock.base.counters import Counters
from penstock.net.live.event_loop import CoreRunner
from penstock.net.udp import free_ports

EAST, WEST, TOWER = "east", "west", "tower"
LEASE = LeaseConfig(routers=(EAST, WEST), witness=TOWER, lease_ms=300)


class Keeper:
    """A router's side of the lease; the router always wants to hold it."""

    def __init__(
        self, name: str, directory: Path, ports: Mapping[str, int], lease: LeaseConfig = LEASE, **access: Any
    ) -> None:
        self.held: list[int] = []
        self.lost: list[int] = []
        self.counters = Counters("test")
        self._clock = SystemClock()
        self._memory = LeaseMemory(directory / name, name, lease, self.counters)
        others = {voter: f"127.0.0.1:{ports[voter]}" for voter in lease.voters if voter != name}
        self.links = LeaseLinks(
            lease,
            name,
            LeaseAccess(port=ports[name], **access),
            self._heard,
            self.counters,
            others,
            reached=lambda voter: self._runner.handle(Reached(voter)),
        )
        self._keeper = LeaseKeeper(lease, name, self._memory.open(), SystemRandomness(), self._clock.now_ns())
        self._runner: CoreRunner[LeaseEvent, LeaseInstruction] = CoreRunner(
            self._keeper, self._carry_out, clock=self._clock
        )

    async def start(self) -> "Keeper":
        await self.links.start()
        self._runner.handle(Fit(True))
        return self

    async def close(self) -> None:
        await self.links.close()
        self._runner.stop()
        await self._memory.close()

    @property
    def holds(self) -> bool:
        return self._keeper.holds(self._clock.now_ns())

    def _heard(self, voter: str, message: Message) -> None:
        self._runner.handle(Heard(voter, message))

    def _carry_out(self, instruction: LeaseInstruction) -> None:
        match instruction:
            case Tell(to, message):
                self.links.tell(to, message)
            case Keep(memory):
                self._memory.keep(memory, lambda: self._runner.handle(Kept()))
            case LeaseAcquired(epoch):
                self.held.append(epoch)
            case LeaseLost(epoch):
                self.lost.append(epoch)
            case _:
                pass


async def start_witness(directory: Path, port: int, lease: LeaseConfig = LEASE, **access: Any) -> LiveWitness:
    config = WitnessConfig(
        name=lease.witness,
        routers=lease.routers,
        state_directory=str(directory / lease.witness),
        lease_ms=lease.lease_ms,
        control=LeaseAccess(port=port, **access),
    )
    witness = LiveWitness(config)
    await witness.node.start()
    return witness


async def start_three(directory: Path) -> tuple[Keeper, Keeper, LiveWitness]:
    ports = dict(zip(LEASE.voters, free_ports(3), strict=True))
    witness = await start_witness(directory, ports[TOWER])
    east, west = Keeper(EAST, directory, ports), Keeper(WEST, directory, ports)
    await asyncio.gather(east.start(), west.start())
    return east, west, witness
