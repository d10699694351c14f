"""Pairs of message routers in processes of their own, with a link between them that can be cut."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from integration.assured_kit import RouterProcess, client_of, router_config
from integration.relay import Relay
from penstock.assured import EndpointConfig, Want
from penstock.assured.node import LivePairConfig, PairAccess, RouterAccess
from penstock.net.udp import free_ports
from waiting import wait_until

NAMES = ("one", "two")
ORDERS = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),), replication="synchronous")


class PairOfRouters:
    """`one` begins; the relay is between them."""

    def __init__(
        self, directory: Path, *endpoints: EndpointConfig, router: dict[str, Any] | None = None, **values: Any
    ) -> None:
        self._stack = contextlib.ExitStack()
        *controls, link = free_ports(3)
        self.relay = self._stack.enter_context(Relay(link))
        self.routers: list[RouterProcess] = []
        for number, name in enumerate(NAMES):
            pair = LivePairConfig(
                routers=NAMES,
                link=PairAccess(port=(self.relay.port, link)[number]),
                clients=f"127.0.0.1:{controls[1 - number]}",
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

    @property
    def one(self) -> RouterProcess:
        return self.routers[0]

    @property
    def two(self) -> RouterProcess:
        return self.routers[1]

    @property
    def places(self) -> list[str]:
        return [each.place for each in self.routers]

    def wait_in_step(self) -> None:
        wait_until(
            lambda: [state_of(each) for each in self.routers] == ["in step", "in step"], "the pair to be in step"
        )

    def close(self) -> None:
        self._stack.close()


def state_of(router: RouterProcess) -> str:
    replication = router.status().replication
    assert replication is not None
    return replication.state


def switch_to(router: RouterProcess, *, force: bool = False) -> None:
    with client_of(router.place, role="operator") as operator:
        operator.switch(force=force)


@contextlib.contextmanager
def pair_of_routers(directory: Path, *endpoints: EndpointConfig, **values: Any) -> Iterator[PairOfRouters]:
    made = PairOfRouters(directory, *endpoints, **values)
    try:
        made.wait_in_step()
        yield made
    finally:
        made.close()
