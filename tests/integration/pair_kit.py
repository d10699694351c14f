"""Pairs of message routers in processes of their own, with a link between them that can be cut."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from integration.assured_kit import RouterProcess, client_of, router_config
from integration.relay import Relay
from penstock.assured import EndpointConfig, Want
from penstock.assured.client import Assured
from penstock.assured.core.status import Replication
from penstock.assured.node_config import LivePairConfig, PairAccess, RouterAccess, VotingConfig
from penstock.net.udp import free_ports
from waiting import PATIENCE_SECONDS, wait_until

NAMES = ("one", "two")
LOOK_SECONDS = 0.05
PATIENT_MS = 5_000
"""Time until a pair degrades, unless a test waits for this: syncs of a busy machine may take a second."""

ORDERS = EndpointConfig(name="orders", wants=(Want(topics=("orders.>",)),), replication="synchronous")


class PairOfRouters:
    """`one` is active at first; the relay is between the routers. `router` has the options of both, `second` the
    different options of the second one; `values` are those of the pair, `voting` those of voting by router name."""

    def __init__(
        self,
        directory: Path,
        *endpoints: EndpointConfig,
        router: dict[str, Any] | None = None,
        second: dict[str, Any] | None = None,
        secret_file: str = "",
        voting: Mapping[str, VotingConfig] | None = None,
        **values: Any,
    ) -> None:
        self._stack = contextlib.ExitStack()
        *controls, link = free_ports(3)
        self.link_port = link
        self.routers: list[RouterProcess] = []
        try:
            self.relay = self._stack.enter_context(Relay(link))
            for number, name in enumerate(NAMES):
                pair = LivePairConfig(
                    routers=NAMES,
                    link=PairAccess(port=(self.relay.port, link)[number], secret_file=secret_file),
                    clients=f"127.0.0.1:{controls[1 - number]}",
                    voting=voting[name] if voting else None,
                    **{"degrade_after_ms": PATIENT_MS, **values},
                )
                told = {
                    "endpoints": endpoints or (ORDERS,),
                    "name": name,
                    "control": RouterAccess(port=controls[number]),
                    "pair": pair,
                    **(router or {}),
                    **((second or {}) if number else {}),
                }
                made = RouterProcess(router_config(directory / name, **told), directory)
                self._stack.callback(made.close)
                self.routers.append(made)
        except BaseException:
            self._stack.close()
            raise

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

    def __enter__(self) -> Self:
        try:
            self.wait_in_step()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()


def replication_of(router: RouterProcess) -> Replication:
    replication = router.status().replication
    assert replication is not None
    return replication


def state_of(router: RouterProcess) -> str:
    return replication_of(router).state


def switch_to(router: RouterProcess, *, force: bool = False) -> None:
    with client_of(router.place, role="operator") as operator:
        operator.switch(force=force)


class Traffic:
    """Publishers, each with its own thread and numbers, and one consumer that acknowledges everything, until the end of
    the block; then `check` fails if a message was lost, out of order, or repeated without a mark."""

    def __init__(self, client: Assured, *, publishers: int = 4, endpoint: str = "orders") -> None:
        self.outcomes: list[list[str]] = [[] for _ in range(publishers)]
        self.came: list[tuple[int, int, bool]] = []
        self._client = client
        self._endpoint = endpoint
        self._is_over = self._is_drained = False
        self._failed: list[BaseException] = []
        self._publishing = [self._thread(self._publish, which) for which in range(publishers)]
        self._consuming = self._thread(self._consume)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over = self._is_drained = True  # threads that still wait end when the client closes

    @property
    def count(self) -> int:
        """Messages that were acknowledged."""
        return sum(map(len, self.outcomes))

    def wait_for(self, more: int) -> None:
        """Wait until `more` messages have been acknowledged, and as many have arrived."""
        published, came = self.count + more, len(self.came) + more
        wait_until(lambda: self._failed or (self.count >= published and len(self.came) >= came), "traffic")
        assert not self._failed

    def check(self) -> None:
        self._is_over = True
        for thread in self._publishing:
            thread.join(PATIENCE_SECONDS)
        wait_until(
            lambda: self._failed or len({each[:2] for each in self.came}) >= self.count,
            "all messages",
        )
        self._is_drained = True
        self._consuming.join(PATIENCE_SECONDS)
        assert not self._failed
        for which, outcomes in enumerate(self.outcomes):
            seen: set[int] = set()
            firsts = []
            for _, number, is_redelivered in (each for each in self.came if each[0] == which):
                assert number not in seen or is_redelivered, f"message {number} of {which} came twice"
                if number not in seen:
                    seen.add(number)
                    firsts.append(number)
            assert firsts == list(range(len(outcomes))), f"messages of {which} are lost, or out of order"

    def _thread(self, target: Callable[..., None], *arguments: object) -> threading.Thread:
        def run() -> None:
            try:
                target(*arguments)
            except BaseException as error:
                self._failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def _publish(self, which: int) -> None:
        with self._client.publisher() as publisher:
            while not self._is_over:
                number = len(self.outcomes[which])
                self.outcomes[which].append(publisher.publish("orders.new", b"%d %d" % (which, number)))

    def _consume(self) -> None:
        with self._client.endpoint(self._endpoint) as queue:
            while not self._is_drained:
                messages = queue.take(64, LOOK_SECONDS)
                for each in messages:
                    which, number = map(int, each.payload.split())
                    self.came.append((which, number, each.is_redelivered))
                queue.ack(messages)
