"""A live witness: the third voter for the lease of a pair of message routers (REPL-14), in a process of its own.

    witness = LiveWitness(config)
    await witness.node.start()
    await witness.node.run(stop)

It stores no messages. Where it runs matters: apart from both routers, so that it does not fail with one of them.
"""

from pathlib import Path

from penstock.assured.core.lease.protocol import VoterEvent, VoterInstruction
from penstock.assured.core.lease.voter import LeaseVoter
from penstock.assured.core.status import WitnessStatus
from penstock.assured.live.voter import LiveVoter
from penstock.assured.node_config import WitnessConfig
from penstock.base.clock import BootClock
from penstock.base.log import logger
from penstock.base.status_page import Health
from penstock.net.live.event_loop import CoreRunner
from penstock.runtime.node import Node

log = logger("assured.witness")


def gauges_of(status: WitnessStatus) -> dict[str, float]:
    return {
        "witness_epoch": status.epoch,
        "witness_routers": len(status.in_touch),
        "witness_alone": bool(status.alone),
        "witness_storing": status.is_storing,
    }


class LiveWitness:
    """`node` starts and closes it; after the start `status()` describes it."""

    def __init__(self, config: WitnessConfig) -> None:
        self.config = config
        self.node = node = Node(config)
        self._clock = BootClock()
        counters = node.counters("assured.lease")
        directory = Path(config.state_directory)
        self._lease = LiveVoter(config.lease, config.name, config.control, {}, directory, self._tell, counters)
        self._voter: LeaseVoter | None = None
        self._runner: CoreRunner[VoterEvent, VoterInstruction] | None = None
        node.add("core", start=self._open, close=self._stop_core)
        node.add("lease", start=self._start_lease, close=self._lease.close)
        node.show(self.status, self._health, gauges=lambda: gauges_of(self.status()))

    def _open(self) -> None:
        voter = self._voter = LeaseVoter(self.config.lease, self._lease.open(), self._clock.now_ns())
        self._runner = CoreRunner(voter, self._lease.carry_out, clock=self._clock)
        self._runner.failed.add_done_callback(lambda failed: self.node.fail(failed.result()))

    async def _start_lease(self) -> None:
        await self._lease.start()
        log.info("witness_started", name=self.config.name, port=self._lease.port, epoch=self.status().epoch)

    def _stop_core(self) -> None:
        if self._runner is not None:
            self._runner.stop()

    @property
    def control_port(self) -> int:
        return self._lease.port

    @property
    def place(self) -> str:
        """The address where routers connect."""
        return f"{self.config.control.host}:{self._lease.port}"

    def _tell(self, event: VoterEvent) -> None:
        assert self._runner is not None
        self._runner.handle(event)

    # Status

    def status(self) -> WitnessStatus:
        """May be called in any thread."""
        assert self._voter is not None
        memory, lease = self._voter.memory, self._lease.status()
        return WitnessStatus(
            name=self.config.name,
            kind="witness",
            epoch=memory.epoch,
            holder=memory.holder,
            bound_to=self._voter.bound_to(self._clock.now_ns()),
            alone=memory.degraded,
            routers=self.config.routers,
            in_touch=lease.in_touch,
            control_port=self._lease.port,
            is_storing=lease.is_storing,
        )

    def _health(self) -> Health:
        status = self.status()
        detail = f"epoch {status.epoch}, holder {status.holder or 'nobody'}, {len(status.in_touch)} routers in touch"
        if status.alone:
            detail += f"; {status.alone} is alone"
        if not status.is_storing:
            detail += "; the disk accepts no data"
        return Health(status.is_storing, detail)
