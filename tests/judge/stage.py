"""A pair of message routers, a witness and clients, each on a separate host: network namespaces, between which packets
are lost without a report."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from certificates import make_certificate
from integration.assured_kit import RouterProcess, router_config
from integration.pair_kit import NAMES, state_of
from integration.voting_kit import LEASE_MS, WITNESS, WitnessProcess
from judge.scene import ENDPOINTS, SETTINGS
from judge.workload import Access
from netns_kit import network_or_skip
from penstock.assured.node_config import (
    LEASE_PORT_DEFAULT,
    PORT_DEFAULT,
    LeaseAccess,
    LivePairConfig,
    PairAccess,
    RouterAccess,
    VotingConfig,
    WitnessConfig,
)
from penstock.bench.hosts import Host
from penstock.net.config import TlsConfig
from penstock.net.secret import write_private
from waiting import wait_until

SILENCE_MS = 1_000


class Stage:
    """`witness` is None where operators decide which router is active."""

    def __init__(self, directory: Path, hosts: list[Host], *, is_voting: bool) -> None:
        *of_routers, self.witness_host, self.left, self.right = hosts
        self._hosts = dict(zip(NAMES, of_routers, strict=True))
        self._stack = contextlib.ExitStack()
        self._directory = directory
        self._guard = self._make_guard(hosts)
        self.access = Access(
            tuple(f"{host.address}:{PORT_DEFAULT}" for host in of_routers),
            self._guard["tls"].ca_file,
            self._guard["secret_file"],
        )
        self.routers: list[RouterProcess] = []
        self.witness: WitnessProcess | None = None
        try:
            with ThreadPoolExecutor(len(hosts)) as pool:  # they start together
                witness = pool.submit(self._make_witness) if is_voting else None
                self.routers += pool.map(partial(self._make_router, is_voting=is_voting), NAMES)
                self.witness = None if witness is None else witness.result()
            self.wait_in_step()
        except BaseException:
            self.close()
            raise

    def _make_guard(self, hosts: list[Host]) -> dict[str, Any]:
        certificate, key = make_certificate(self._directory / "tls", *(host.address for host in hosts))
        secret = self._directory / "secret"
        write_private(secret, b"what they all know, and nobody else")
        tls = TlsConfig(certificate=str(certificate), private_key=str(key), ca_file=str(certificate))
        return {"tls": tls, "secret_file": str(secret)}

    def _make_witness(self) -> WitnessProcess:
        config = WitnessConfig(
            name=WITNESS,
            routers=NAMES,
            state_directory=str(self._directory / WITNESS),
            lease_ms=LEASE_MS,
            control=LeaseAccess(host=self.witness_host.address, **self._guard),
        )
        made = WitnessProcess(config, self._directory, self.witness_host.entered)
        self._stack.callback(made.close)
        return made

    def _make_router(self, name: str, *, is_voting: bool) -> RouterProcess:
        own = self._hosts[name].address
        (other,) = (host.address for each, host in self._hosts.items() if each != name)
        voters = {each: host.address for each, host in self._hosts.items() if each != name}
        voters[WITNESS] = self.witness_host.address
        voting = VotingConfig(
            witness=WITNESS,
            voters={voter: f"{address}:{LEASE_PORT_DEFAULT}" for voter, address in voters.items()},
            listen=LeaseAccess(host=own, **self._guard),
            lease_ms=LEASE_MS,
        )
        pair = LivePairConfig(
            routers=NAMES,
            link=PairAccess(host=self._hosts[NAMES[1]].address, **self._guard),
            clients=f"{other}:{PORT_DEFAULT}",
            silence_ms=SILENCE_MS,
            voting=voting if is_voting else None,
        )
        control = RouterAccess(host=own, **self._guard)
        config = router_config(self._directory / name, *ENDPOINTS, name=name, control=control, pair=pair, **SETTINGS)
        made = RouterProcess(config, self._directory, self._hosts[name].entered)
        self._stack.callback(made.close)
        return made

    def host_of(self, router: RouterProcess) -> Host:
        return self._hosts[router.config.name]

    @property
    def router_hosts(self) -> list[Host]:
        return list(self._hosts.values())

    @property
    def client_hosts(self) -> list[Host]:
        return [self.left, self.right]

    def wait_in_step(self) -> None:
        wait_until(
            lambda: [state_of(each) for each in self.routers] == ["in step", "in step"], "the pair to be in step"
        )

    def active(self) -> RouterProcess:
        """The active router of the newest epoch, if there is one."""
        found: list[tuple[int, RouterProcess]] = []

        def look() -> bool:
            states = [(each.status(), each) for each in self.routers]
            found[:] = [(status.epoch, each) for status, each in states if status.role == "active"]
            return bool(found)

        wait_until(look, "a router to be active")
        return max(found, key=lambda each: each[0])[1]

    def standby(self) -> RouterProcess:
        return self.other_than(self.active())

    def other_than(self, router: RouterProcess) -> RouterProcess:
        return next(each for each in self.routers if each is not router)

    def switch_to(self, router: RouterProcess, *, force: bool = False) -> None:
        """Act as an operator on a client host."""
        with self.left.entered(), self.access.session(router.place, role="operator") as operator:
            operator.switch(force=force)

    def close(self) -> None:
        self._stack.close()


@contextmanager
def stage(directory: Path, *, is_voting: bool) -> Iterator[Stage]:
    with network_or_skip(is_lossy=False) as network:
        hosts = [network.add_host() for _ in range(5)]
        made = Stage(directory, hosts, is_voting=is_voting)
        try:
            yield made
        finally:
            made.close()
