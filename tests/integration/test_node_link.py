"""A consumer's link to a node that stops and restarts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from integration.distribution_kit import mux_config
from penstock.base.errors import PenstockError, RefusedError, UnreachableError
from penstock.engine import control
from penstock.engine.live.link import NodeLink, Told
from penstock.net.live.control_driver import ControlConnection, ControlServer
from penstock.plant.live.driver import LiveNode

PATIENCE_S = 20.0

Connection = ControlConnection[control.ControlMessage]


class Hearing:
    def __init__(self) -> None:
        self.messages: list[Told] = []
        self.welcomes: list[control.Welcome] = []
        self.losses: list[PenstockError] = []
        self.at = 0

    async def welcomed(self, welcome: control.Welcome) -> None:
        self.welcomes.append(welcome)

    async def told(self, message: Told) -> None:
        self.messages.append(message)

    def lost(self, error: PenstockError) -> None:
        self.losses.append(error)

    def position(self) -> int:
        return self.at


class StandIn:
    """A node that accepts every subscription, and records the messages it receives."""

    def __init__(self, epoch: int = 7) -> None:
        self.heard: list[control.ControlMessage] = []
        self.connections: list[Connection] = []
        self.epoch = epoch
        self.refusals: list[control.RefusalCode] = []
        """The answers to the next logins."""
        self.cuts = 0
        """Number of logins that end with a lost connection instead of an answer."""

    async def serve(self, connection: Connection) -> None:
        self.connections.append(connection)
        async for said in connection:
            self.heard.append(said)
            match said:
                case control.Login() if self.refusals:
                    await connection.send(control.Refused(self.refusals.pop(0), "not now"))
                case control.Vouch() if self.cuts:
                    self.cuts -= 1
                    connection.transport.abort()
                case control.Vouch(number):
                    await connection.send(control.Vouched(number, "app", "", 2**62, ["md.>"]))
                case control.Login():
                    await connection.send(control.Welcome("stand-in", self.epoch, 1, ["critical"]))
                case control.Subscribe(topics=["denied"]):
                    refusal = control.Refused(control.RefusalCode.ENTITLEMENT, "no", said.number)
                    await connection.send(refusal)
                case control.Snapshot(number):
                    await connection.send(control.Records(number, b"one", is_last=False))
                    await connection.send(control.Records(number, b"two", is_last=True))
                case control.Subscribe(number) | control.Modify(number) | control.RenewToken(number):
                    await connection.send(control.Held(number, 4.0))
                    await connection.send(control.Events(b"event"))


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.005)


def linked(
    test: Callable[[NodeLink, Hearing, StandIn, ControlServer], Awaitable[None]], *, is_node: bool = False
) -> None:
    async def main() -> None:
        node, hearing = StandIn(), Hearing()
        async with ControlServer(control.PROTOCOL, node.serve, node="stand-in", config=control.CONNECTION) as server:
            link = NodeLink(("127.0.0.1", server.port), control.Login("app", is_node=is_node), hearing)
            running = asyncio.create_task(link.run())
            try:
                await until(link.attached.is_set)
                async with asyncio.timeout(PATIENCE_S):
                    await test(link, hearing, node, server)
            finally:
                await link.close()
                await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_requests_are_answered_and_events_told() -> None:
    async def test(link: NodeLink, hearing: Hearing, node: StandIn, _: ControlServer) -> None:
        number = await link.subscribe(["md.>"], "metered", 9.0)
        assert await link.modify(number, 4.0) == 4.0
        assert await link.snapshot(["md.>"]) == [b"one", b"two"]
        with pytest.raises(RefusedError) as refused:
            await link.subscribe(["denied"])
        assert refused.value.peer_code == "entitlement"
        await until(lambda: hearing.messages == [control.Events(b"event")] * 2)

    linked(test)


@pytest.mark.parametrize("is_node", [False, True])
def test_only_a_node_gets_what_has_come_meanwhile_in_one_piece_and_no_more_than_a_message_may_have(
    is_node: bool,
) -> None:
    sent = [b"%d" % (each % 10) * (control.EVENTS_SIZE_MAX // 3) for each in range(12)]

    async def test(link: NodeLink, hearing: Hearing, node: StandIn, _: ControlServer) -> None:
        said = 0

        async def told(message: Told) -> None:
            nonlocal said
            hearing.messages.append(message)
            if not said:  # while the first one is handled, the others arrive
                said = 1
                for data in sent[1:]:
                    await node.connections[-1].send(control.Events(data))

        hearing.told = told  # type: ignore[method-assign]
        await node.connections[-1].send(control.Events(sent[0]))
        pieces = hearing.messages
        await until(
            lambda: sum(len(each.data) for each in pieces if isinstance(each, control.Events)) == 4 * 3 * len(sent[0])
        )
        datas = [each.data for each in pieces if isinstance(each, control.Events)]
        assert b"".join(datas) == b"".join(sent)
        assert max(map(len, datas)) <= control.EVENTS_SIZE_MAX
        assert (datas == sent) == (not is_node)

    linked(test, is_node=is_node)


def test_a_new_connection_asks_for_everything_again_from_where_the_consumer_was() -> None:
    async def test(link: NodeLink, hearing: Hearing, node: StandIn, _: ControlServer) -> None:
        first = await link.subscribe(["a"], "critical")
        second = await link.subscribe(["b"])
        hearing.at = 55
        node.heard.clear()
        await node.connections[-1].close()
        await until(lambda: len(node.heard) == 3 and link.attached.is_set())
        assert node.heard[1:] == [
            control.Subscribe(first, ["a"], "critical", after=55, epoch=7),
            control.Subscribe(second, ["b"], after=55, epoch=7),
        ]
        assert len(hearing.losses) == 1
        node.heard.clear()
        node.epoch = 8  # another run of the node, where these numbers are not valid
        await node.connections[-1].close()
        await until(lambda: len(node.heard) == 3 and link.attached.is_set())
        assert node.heard[1:] == [control.Subscribe(first, ["a"], "critical"), control.Subscribe(second, ["b"])]

    linked(test)


def test_what_is_asked_for_meanwhile_is_asked_for_later() -> None:
    async def test(link: NodeLink, hearing: Hearing, node: StandIn, server: ControlServer) -> None:
        await server.close()
        await until(lambda: not link.attached.is_set())
        number = await link.subscribe(["late"])
        with pytest.raises(UnreachableError):
            await link.snapshot(["a"])
        again = ControlServer(
            control.PROTOCOL, node.serve, node="stand-in", port=link.address[1], config=control.CONNECTION
        )
        async with again:
            await until(link.attached.is_set)
            assert control.Subscribe(number, ["late"]) in node.heard

    linked(test)


@pytest.mark.parametrize("code", ["protocol", "revoked"])
def test_a_node_goes_on_trying_whatever_the_node_above_says(code: str) -> None:
    """A node keeps trying because consumers depend on it; a consumer gives up."""

    async def test(link: NodeLink, hearing: Hearing, node: StandIn, _: ControlServer) -> None:
        node.refusals = [control.RefusalCode(code)] * 2
        await node.connections[-1].close()
        await until(lambda: not node.refusals and link.attached.is_set())
        assert link.failure is None

    linked(test, is_node=True)


def test_a_consumer_is_served_again_when_the_node_above_was_lost_while_it_was_asked() -> None:
    """The consumer did not cause the loss: if a multiplexer reported it as an error, its consumers would give up for
    good."""

    async def test() -> None:
        above, hearing = StandIn(), Hearing()
        above.cuts = 2
        async with ControlServer(control.PROTOCOL, above.serve, node="above", config=control.CONNECTION) as server:
            mux = LiveNode(mux_config(server.port))
            await mux.node.start()
            stop = asyncio.Event()
            running = asyncio.create_task(mux.node.run(stop))
            link = NodeLink(("127.0.0.1", mux.control_port), control.Login("app", "session", token="t"), hearing)
            consuming = asyncio.create_task(link.run())
            try:
                await until(lambda: link.attached.is_set() or link.failure is not None)
                assert link.failure is None
                assert above.cuts == 0, "the connection was not lost as often as planned"
            finally:
                await link.close()
                stop.set()
                await asyncio.gather(running, consuming, return_exceptions=True)

    asyncio.run(test())
