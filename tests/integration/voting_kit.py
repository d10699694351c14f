"""A pair of message routers with a witness, each in a process of its own: the pair switches automatically."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from children import resume, suspend
from integration.assured_kit import RouterProcess
from integration.live_kit import Entered, NodeProcess
from integration.pair_kit import NAMES, PairOfRouters
from penstock.assured import EndpointConfig
from penstock.assured.core.status import WitnessStatus
from penstock.assured.node_config import LeaseAccess, VotingConfig, WitnessConfig
from penstock.net.udp import free_ports
from waiting import wait_until

WITNESS = "witness"
LEASE_MS = 1_500


class WitnessProcess(NodeProcess):
    config: WitnessConfig

    def __init__(self, config: WitnessConfig, directory: Path, entered: Entered = contextlib.nullcontext) -> None:
        super().__init__(("witness", "run"), config, directory, entered)

    def status(self) -> WitnessStatus:
        return msgspec.json.decode(self.page("/status"), type=WitnessStatus)


class VotingPair(PairOfRouters):
    """The relay is between the routers, not between voters."""

    def __init__(self, directory: Path, *endpoints: EndpointConfig, **values: Any) -> None:
        ports = dict(zip((*NAMES, WITNESS), free_ports(3), strict=True))
        access = {name: LeaseAccess(port=port) for name, port in ports.items()}
        config = WitnessConfig(
            name=WITNESS,
            routers=NAMES,
            state_directory=str(directory / WITNESS),
            lease_ms=LEASE_MS,
            control=access[WITNESS],
        )
        voting = {
            name: VotingConfig(
                witness=WITNESS,
                voters={voter: f"127.0.0.1:{port}" for voter, port in ports.items() if voter != name},
                listen=access[name],
                lease_ms=LEASE_MS,
            )
            for name in NAMES
        }
        with contextlib.ExitStack() as stack:
            self.witness = stack.enter_context(contextlib.closing(WitnessProcess(config, directory)))
            super().__init__(directory, *endpoints, voting=voting, **values)
            stack.push(self._stack.pop_all())  # the routers end first
            self._stack = stack.pop_all()


def wait_active(router: RouterProcess) -> None:
    wait_until(lambda: router.status().role == "active", f"{router.config.name} to be active")


@contextlib.contextmanager
def stopped(router: RouterProcess) -> Iterator[None]:
    """Stop the router with SIGSTOP for the block; the router does not notice the pause."""
    suspend(router.pid)
    try:
        yield
    finally:
        resume(router.pid)
