"""Agents of a distribution tree, in this process or in their own, and the messages that their subscribers received."""

import signal
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

from integration.live_kit import NodeHere, NodeProcess
from penstock.base.errors import PenstockError
from penstock.model import Message, shipped
from penstock.tree.client import StreamPublisher, StreamSubscription, open_publisher, open_stream
from penstock.tree.config import AgentAccess, AgentConfig, BackoffConfig, ReactionConfig, StreamConfig
from penstock.tree.core.infostream import Info
from penstock.tree.live.driver import LiveAgent
from waiting import PATIENCE_SECONDS, wait_until

TRADE = shipped("trade")
MD = StreamConfig(name="md", topics=("md.>",))
QUICK: dict[str, Any] = {
    "backoff": BackoffConfig(base_ms=10, max_ms=100),
    "heartbeat_ms": 50,
    "silence_ms": 5_000,
    "tail_bytes": 4 * 1024 * 1024,
    "history_bytes": 4 * 1024 * 1024,
}
AT_ONCE = ReactionConfig(parent_lost=("alternate", "sibling", "parent"))


def root_config(directory: Path, **values: Any) -> AgentConfig:
    settings = {"name": "root", "role": "root", "streams": (MD,), "state_directory": str(directory), **QUICK, **values}
    return AgentConfig(**{"control": AgentAccess(port=0), **settings})


def agent_config(name: str, parent: str, *alternates: str, **values: Any) -> AgentConfig:
    settings = {"name": name, "parent": parent, "alternates": alternates, "on": AT_ONCE, **QUICK, **values}
    return AgentConfig(**{"control": AgentAccess(port=0), **settings})


class AgentHere(NodeHere[LiveAgent]):
    def __init__(self, config: AgentConfig) -> None:
        super().__init__(lambda: LiveAgent(config))

    @property
    def agent(self) -> LiveAgent:
        return self.node

    def wait_rooted(self) -> "AgentHere":
        wait_until(lambda: self.agent.status(0).is_rooted, f"{self.agent.config.name} to have a way to the root")
        return self

    def children(self) -> list[str]:
        return sorted(each.name for each in self.agent.status().links if each.role != "parent")

    def why_alone(self) -> str:
        return self.agent.status(0).why_alone

    def said(self, kind: str) -> list[dict[str, object]]:
        """The agent's messages of this kind on the infostream, sent and received."""
        return [each.values for each in self.agent.status(0).happenings if each.what == kind]

    def refusals(self) -> Counter[str]:
        """Number of the agent's refusals of parties and of their answers, by cause."""
        found: Counter[str] = Counter()
        for each in (self.agent._core.environment.counters, self.agent._links.counters):
            found.update(each.by_cause("requests_refused"))
        return found


def agent_here(config: AgentConfig) -> "closing[AgentHere]":
    return closing(AgentHere(config))


class AgentProcess(NodeProcess):
    config: AgentConfig

    def __init__(self, config: AgentConfig, directory: Path) -> None:
        super().__init__(("agent",), config, directory)

    def hang_up(self) -> None:
        self.process.process.send_signal(signal.SIGHUP)


def agent_process(config: AgentConfig, directory: Path) -> "closing[AgentProcess]":
    return closing(AgentProcess(config, directory))


def trade(number: int, symbol: str = "IBM") -> Message:
    return TRADE.new(symbol=symbol, price=number, quantity=1, trade_id=number, action="trade", source_seq=number)


class Reader:
    """A subscriber with a thread that reads its messages, and records the messages in order."""

    def __init__(self, place: str, *topics: str, is_reading: bool = True, **options: Any) -> None:
        self.seqs: list[int] = []
        self.numbers: list[int] = []
        self.topics: list[str] = []
        self.infos: list[tuple[str, Info]] = []
        self.error: PenstockError | None = None
        options.setdefault("backoff", BackoffConfig(base_ms=10, max_ms=100))
        self.stream: StreamSubscription = open_stream(
            place, *(topics or ("md.>",)), on_infostream=lambda *told: self.infos.append(told), **options
        )
        self._thread = threading.Thread(target=self._read, daemon=True)
        if is_reading:
            self._thread.start()

    def read(self) -> None:
        """Start reading."""
        self._thread.start()

    def _read(self) -> None:
        try:
            for message in self.stream:
                self.seqs.append(message.seq)
                self.topics.append(message.topic)
                self.numbers.append(getattr(message, "trade_id", 0))
        except PenstockError as error:
            self.error = error

    def wait_live(self) -> "Reader":
        wait_until(lambda: self.stream.is_live or self.error, "the subscription to be live")
        assert self.error is None, self.error
        return self

    def wait_for(self, number: int) -> list[int]:
        """Wait for this number, and return all numbers received."""
        wait_until(lambda: number in self.numbers[-1:] or self.error, f"number {number}, not {self.numbers[-1:]}")
        assert self.error is None, self.error
        return list(self.numbers)

    def wait_for_any(self) -> None:
        wait_until(lambda: self.numbers or self.error, "a message")

    def kinds(self) -> set[str]:
        return {info.kind for _, info in list(self.infos)}

    def close(self) -> None:
        self.stream.close()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_SECONDS)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def publisher(place: str, *alternates: str, **options: Any) -> StreamPublisher:
    options.setdefault("backoff", BackoffConfig(base_ms=10, max_ms=100))
    return open_publisher(place, alternates=alternates, **options)


def publish(to: StreamPublisher, numbers: range, topic: str = "md.us.IBM.trade") -> None:
    for number in numbers:
        to.publish(topic, trade(number))
