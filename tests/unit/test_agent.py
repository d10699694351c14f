"""The runner of cores: order of events, one timer, bounded turns, and failures with their history."""

import asyncio
import json
from io import StringIO
from typing import Any

import pytest

from penstock.base import log
from penstock.base.core import Tick
from penstock.base.errors import LimitError, LocalProtocolError, TopicError
from penstock.middleware import Close, Closed, Multicast, OutgoingMessage, Publish, Publisher
from penstock.net import CoreRunner, run_agent
from penstock.net.core.events import SendBytes
from penstock.wire import PacketFlag, decode
from unit.middleware_kit import GROUP, publisher
from unit.net_kit import MS, run, until


class Toy:
    """A core that echoes its events; "fail" and "refuse" raise, an integer becomes its next deadline."""

    def __init__(self) -> None:
        self.due_ns: int | None = None
        self.ticks: list[int] = []

    def handle(self, event: Any, now_ns: int) -> list[Any]:
        match event:
            case "fail":
                raise ZeroDivisionError("the toy broke")
            case "refuse":
                raise LocalProtocolError("not like this")
            case int():
                self.due_ns = event
            case Tick():
                self.ticks.append(now_ns)
                self.due_ns = None
        return [event]

    def next_deadline_ns(self) -> int | None:
        return self.due_ns


class TurnedClock:
    """A clock that the test sets, while the loop's own clock runs."""

    def __init__(self) -> None:
        self.now = 0

    def now_ns(self) -> int:
        return self.now

    def wall_ns(self) -> int:
        return self.now


def test_events_are_handled_in_order_and_in_bounded_turns() -> None:
    async def main() -> None:
        done: list[Any] = []
        runner = CoreRunner(Toy(), done.append, events_per_turn=3)
        for number in "abcdefgh":
            runner.give(number)
        assert done == []
        seen = []
        while len(done) < 8:
            await asyncio.sleep(0)
            seen.append(len(done))
        assert done == list("abcdefgh")
        assert sorted(set(seen) - {0}) == [3, 6, 8]
        runner.stop()

    run(main())


def test_the_queue_of_events_is_bounded() -> None:
    async def main() -> None:
        runner = CoreRunner(Toy(), lambda _: None, events_max=2)
        runner.give("a")
        runner.give("b")
        with pytest.raises(LimitError):
            runner.give("c")
        runner.stop()

    run(main())


def test_an_urgent_event_is_handled_at_once() -> None:
    async def main() -> None:
        done: list[Any] = []
        runner = CoreRunner(Toy(), done.append)
        runner.give("later")
        runner.handle("now")
        assert done == ["now"]
        await until(lambda: len(done) == 2)
        runner.stop()

    run(main())


def test_the_result_of_an_instruction_is_handled_next() -> None:
    async def main() -> None:
        done: list[Any] = []

        def carry_out(instruction: Any) -> None:
            done.append(instruction)
            if instruction in ("ask", "ask again"):
                runner.answer(f"answer to {instruction}")

        runner: CoreRunner[Any, Any] = CoreRunner(Toy(), carry_out)
        runner.give("later")
        runner.handle("ask")
        assert done == ["ask", "answer to ask"]
        runner.answer("of nothing")
        assert done == ["ask", "answer to ask"]
        await until(lambda: len(done) == 4)
        assert done[2:] == ["later", "of nothing"]
        runner.stop()

    run(main())


def test_a_deadline_brings_a_tick_and_never_too_early() -> None:
    async def main() -> None:
        core, clock = Toy(), TurnedClock()
        runner = CoreRunner(core, lambda _: None, clock=clock)
        runner.handle(5 * MS)
        await asyncio.sleep(0.03)  # the loop's timer fires in between, before the core's deadline
        assert core.ticks == []
        clock.now = 5 * MS
        await until(lambda: core.ticks)
        assert core.ticks == [5 * MS]
        runner.stop()

    run(main())


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts its timers."""

    def __init__(self) -> None:
        super().__init__()
        self.timers = 0

    def call_later(self, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_later(*arguments, **options)


def test_the_timer_is_armed_again_only_for_an_earlier_deadline() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        core = Toy()
        runner = CoreRunner(core, lambda _: None, clock=TurnedClock())
        for due_ms in range(20_000, 21_000):  # ever later: like a keep-alive that every message postpones
            runner.handle(due_ms * MS)
        assert loop.timers == 1
        runner.handle(10_000 * MS)
        assert loop.timers == 2
        runner.stop()

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def test_a_refused_event_raises_in_the_caller_and_does_not_end_the_run() -> None:
    async def main() -> None:
        done: list[Any] = []
        runner = CoreRunner(Toy(), done.append)
        with pytest.raises(LocalProtocolError):
            runner.handle("refuse")
        runner.handle("a")
        assert done == ["a"]
        assert not runner.failed.done()
        runner.stop()

    run(main())


@pytest.mark.parametrize("how", ["handle", "give"])
def test_a_failure_ends_the_run_and_logs_its_history_without_secrets(how: str, lines: StringIO) -> None:
    log.configure(style="json", stream=lines)
    handshake = SendBytes(b"Authorization: password")
    done: list[Any] = []

    async def main(stop: asyncio.Event) -> None:
        runner = CoreRunner(Toy(), done.append)
        for event in (handshake, "fail", "after"):
            getattr(runner, how)(event)
        await runner.run(stop)

    assert run_agent(main, name="toy") == 1
    assert done == [handshake]
    assert "password" not in lines.getvalue()
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    (failure,) = [each for each in said if each["event"] == "core_failed"]
    assert failure["core"] == "Toy"
    assert failure["events"] == ["SendBytes(data: 23)", "str()"]
    assert "the toy broke" in failure["error"]
    assert [each["event"] for each in said] == ["agent_started", "core_failed", "agent_failed", "agent_stopped"]


def test_a_failing_driver_ends_the_run_too(lines: StringIO) -> None:
    log.configure(style="json", stream=lines)

    def carry_out(_: Any) -> None:
        raise OSError("no such cable")

    async def main(stop: asyncio.Event) -> None:
        runner = CoreRunner(Toy(), carry_out)
        runner.handle("x")
        await runner.run(stop)

    assert run_agent(main, name="toy") == 1
    assert "no such cable" in lines.getvalue()


def test_an_agent_that_has_finished_has_status_0(lines: StringIO) -> None:
    log.configure(style="json", stream=lines)

    async def main(stop: asyncio.Event) -> None:
        runner = CoreRunner(Toy(), lambda _: None)
        asyncio.get_running_loop().call_soon(stop.set)
        await runner.run(stop)

    assert run_agent(main, name="toy") == 0
    assert '"loop":"uvloop"' in lines.getvalue().replace(" ", "")


@pytest.mark.spec("FILT-3")
def test_the_runner_drives_a_real_publisher() -> None:
    """Keep-alives are sent without a call, an invalid topic raises in the caller, and a goodbye ends the run."""

    async def main() -> None:
        said: list[Any] = []
        core: Publisher = publisher(keep_alive_first_ms=5, keep_alive_ms=5, linger_ms=20)
        runner: CoreRunner[Any, Any] = CoreRunner(core, said.append)
        runner.handle(Publish(GROUP, [OutgoingMessage("t", b"one")]))
        with pytest.raises(TopicError):
            runner.handle(Publish(GROUP, [OutgoingMessage("a", b"before"), OutgoingMessage("a..b", b"bad topic")]))
        await until(lambda: len(said) >= 4)
        packets = [decode(each.data) for each in said]
        assert [packet.sequence for packet in packets][:4] == [1, 2, 3, 4]
        # the valid message before the invalid one is sent
        assert [len(packet) for packet in packets][:4] == [1, 1, 0, 0]
        assert all(packet.flags & PacketFlag.KEEP_ALIVE for packet in packets[2:])
        runner.give(Close())
        await until(lambda: isinstance(said[-1], Closed))
        goodbyes = [each for each in said if isinstance(each, Multicast)]
        assert decode(goodbyes[-1].data).flags & PacketFlag.GOODBYE
        assert core.next_deadline_ns() is None
        runner.stop()

    run(main())
