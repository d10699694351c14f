"""A node with a single core: refused events, failures, and recent events."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from penstock.base.config import Config
from penstock.base.errors import LocalProtocolError
from penstock.base.log import logger
from penstock.net.page_access import PageAccessConfig
from penstock.runtime.core_node import HAPPENINGS_MAX, CoreNode
from penstock.runtime.happening import Happening
from penstock.runtime.node import Node


class SmallConfig(Config, frozen=True):
    name: str = "small"
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    metrics_access: PageAccessConfig = PageAccessConfig()


class Echo:
    """A core that answers each event with the event itself."""

    def handle(self, event: object, now_ns: int) -> list[object]:
        if event == "refused":
            raise LocalProtocolError("not this one")
        return [event]

    def next_deadline_ns(self) -> int | None:
        return None


def run(work: Callable[[Node, CoreNode[str, object], list[object]], Awaitable[None]]) -> None:
    async def bounded() -> None:
        node = Node(SmallConfig())
        out: list[object] = []

        def carry_out(instruction: object) -> None:
            if instruction == "broken":
                raise ValueError("cannot be carried out")
            out.append(instruction)

        async with asyncio.timeout(20):
            await work(node, CoreNode(node, Echo(), carry_out, logger("test")), out)

    asyncio.run(bounded())


def test_an_event_that_the_core_refuses_is_not_a_failure() -> None:
    async def work(node: Node, running: CoreNode[str, object], out: list[object]) -> None:
        assert isinstance(running.tell("refused"), LocalProtocolError)
        assert running.tell("next") is None
        assert (out, running.has_failed) == (["next"], False)
        await running.await_tokens()  # without an administration server to wait for

    run(work)


def test_a_failing_core_ends_the_node() -> None:
    async def work(node: Node, running: CoreNode[str, object], out: list[object]) -> None:
        await node.start()
        running.tell("broken")
        assert running.has_failed
        with pytest.raises(ValueError, match="cannot be carried out"):
            await node.run(asyncio.Event())

    run(work)


def test_the_newest_node_events_are_kept() -> None:
    async def work(node: Node, running: CoreNode[str, object], out: list[object]) -> None:
        for number in range(HAPPENINGS_MAX + 2):
            running.note("move", {"number": number}, direction="said", party="leaf")
        kept = running.happenings()
        assert [each.values["number"] for each in kept] == list(range(2, HAPPENINGS_MAX + 2))
        assert (kept[0].direction, kept[0].party) == ("said", "leaf")

    run(work)


def test_an_event_of_a_router_has_no_infostream_fields() -> None:
    assert msgspec.json.encode(Happening(1, "degraded", {"mode": "alone"})) == (
        b'{"time_ns":1,"what":"degraded","values":{"mode":"alone"}}'
    )
