"""A pair of message routers with a witness, each in a process of its own: it switches by itself."""

import contextlib
import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from integration.assured_kit import Entered, RouterProcess, router_config
from integration.command_kit import Running, running
from integration.pair_kit import NAMES, ORDERS, state_of
from integration.relay import Relay
from integration.tree_kit import write_toml
from penstock.assured import EndpointConfig
from penstock.assured.node import LeaseAccess, LivePairConfig, PairAccess, RouterAccess, VotingConfig
from penstock.assured.witnessing import WitnessConfig, WitnessStatus
from penstock.net.udp import free_ports
from waiting import PATIENCE_SECONDS, wait_until

WITNESS = "witness"
LEASE_MS = 1_500


class WitnessProcess:
    """Can be killed, and started again in the same place; on another host, if `entered` leads there."""

    def __init__(self, config: WitnessConfig, directory: Path, entered: Entered = contextlib.nullcontext) -> None:
        self.config = config
        self._entered = entered
        self._path = directory / f"{config.name}.toml"
        self._stack = contextlib.ExitStack()
        self._process: Running
        self.start()

    def start(self) -> None:
        write_toml(self._path, self.config)
        with self._entered():
            self._process = self._stack.enter_context(running("witness", "run", "--config", str(self._path)))
        self._process.wait_for_output("control_port")
        self.facts = json.loads(self._process.out.splitlines()[0])

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.process.kill()
        self._process.process.wait(PATIENCE_SECONDS)

    def status(self) -> WitnessStatus:
        url = f"{self.facts['url']}/status"
        with self._entered(), urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
            return msgspec.json.decode(answer.read(), type=WitnessStatus)

    def close(self) -> None:
        self._stack.close()


class VotingPair:
    """`one` begins; the relay is between the routers, not between voters."""

    def __init__(
        self, directory: Path, *endpoints: EndpointConfig, router: dict[str, Any] | None = None, **values: Any
    ) -> None:
        self._stack = contextlib.ExitStack()
        *controls, link, one, two, witness = free_ports(6)
        ports = dict(zip((*NAMES, WITNESS), (one, two, witness), strict=True))
        try:
            self.relay = self._stack.enter_context(Relay(link))
            self.witness = WitnessProcess(
                WitnessConfig(
                    name=WITNESS,
                    routers=NAMES,
                    state_directory=str(directory / WITNESS),
                    lease_ms=LEASE_MS,
                    control=LeaseAccess(port=witness),
                ),
                directory,
            )
            self._stack.callback(self.witness.close)
            self.routers: list[RouterProcess] = []
            for number, name in enumerate(NAMES):
                voting = VotingConfig(
                    witness=WITNESS,
                    voters={voter: f"127.0.0.1:{port}" for voter, port in ports.items() if voter != name},
                    listen=LeaseAccess(port=ports[name]),
                    lease_ms=LEASE_MS,
                )
                pair = LivePairConfig(
                    routers=NAMES,
                    link=PairAccess(port=(self.relay.port, link)[number]),
                    clients=f"127.0.0.1:{controls[1 - number]}",
                    voting=voting,
                    **values,
                )
                config = router_config(
                    directory / name,
                    *(endpoints or (ORDERS,)),
                    name=name,
                    control=RouterAccess(port=controls[number]),
                    pair=pair,
                    **(router or {}),
                )
                made = RouterProcess(config, directory)
                self._stack.callback(made.close)
                self.routers.append(made)
            self.one, self.two = self.routers
            self.places = [each.place for each in self.routers]
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Self:
        self.wait_in_step()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    def wait_in_step(self) -> None:
        wait_until(
            lambda: [state_of(each) for each in self.routers] == ["in step", "in step"], "the pair to be in step"
        )


def wait_active(router: RouterProcess) -> None:
    wait_until(lambda: router.status().role == "active", f"{router.config.name} to be active")


@contextlib.contextmanager
def stopped(router: RouterProcess) -> Iterator[None]:
    """It stands still in the block, and does not know that."""
    os.kill(router.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(router.pid, signal.SIGCONT)
