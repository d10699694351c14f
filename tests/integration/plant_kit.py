"""Whole plants for tests: documents of a small plant, its nodes as real processes, readers that record their
messages."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

import penstock
from admin_kit import credentials, credentials_file, policy_text
from children import resume, suspend
from penstock.base.clock import random_bytes
from penstock.base.errors import PenstockError
from penstock.client import Client, Subscription
from penstock.feed.core.status import AdapterStatus
from penstock.middleware import MergeGap
from penstock.net.udp import Channel, free_channel, free_ports
from penstock.node.plant import Plant
from penstock.node.running import NodeProcess, RunningPlant
from penstock.security import PrivateKey
from penstock.security.live.client import AdminClient
from waiting import PATIENCE_SECONDS

RULES = """
[groups]
desk = ["alice", "bob"]

[[rule]]
who = ["@desk"]
receive = ["md.us.>", "derived.>"]
send = ["derived.desk.>"]

[[rule]]
who = ["dora"]
receive = ["md.us.eq.>"]
delay_minutes = 1

[[rule]]
who = ["filter"]
receive = ["md.us.>"]

[[rule]]
who = ["feed"]
send = ["md.us.eq.>", "derived.>"]
"""
TOPICS = ["md.us.eq.>", "derived.>"]
MARKET = "md.us.eq.>"
EXCHANGE = "exchange"
SOURCE_STREAM, DERIVED_STREAM = 1, 9

R = TypeVar("R", bound="Reader")


class PlantOptions(msgspec.Struct, frozen=True):
    rate: float = 2_000.0
    """Source messages per second; 0 as fast as possible."""

    symbols: int = 10
    messages: int = 2**40
    sealed: bool = False
    journal: bool = False
    standby: bool = False
    """True if there is a second administration server that takes over by itself."""

    more: str = ""
    """Further nodes, as the document writes them."""

    sync: str = "active_lost_ms = 3000"
    """Lines of the feed's [feed.sync]. The timeout is long, because processes are slow on a loaded machine; the end of
    a process is detected by its connections."""


class TestPlant:
    """A plant at work; leaving its `with` block ends every process. Clients are defined in admin_kit."""

    __test__ = False

    def __init__(self, directory: Path, options: PlantOptions) -> None:
        self._open = ExitStack()
        self.directory = directory
        self.channels = [free_channel(), free_channel()]
        ports = free_ports(5)
        self.admin_ports = ports[: 2 if options.standby else 1]
        path = directory / "plant.toml"
        path.write_text(_document(directory, options, self.channels, ports))
        self.running = self._open.enter_context(RunningPlant(Plant.load(path), log_level="WARNING"))
        self.readers: list[Reader] = []

    @property
    def url(self) -> str:
        return "penstock://" + ",".join(f"127.0.0.1:{port}" for port in self.admin_ports)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()

    # Nodes

    def start(self, *, players: bool = True, without: tuple[str, ...] = ()) -> None:
        """Start all nodes; return when an adapter is active and, if there are two, the backup is connected."""
        for name in without:
            self.node(name).is_wanted = False
        assert self.running.start(players=False), self.running.faults
        self.until(lambda: self.running.active() is not None, "an active adapter")
        self.until(lambda: all(each.status and each.status.is_registered for each in self.alive()), "registrations")
        if players:
            self.start_exchange()

    def start_exchange(self) -> None:
        assert self.running.start_players(), self.running.faults

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Supervise the plant until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"timed out waiting for {what}: {self._situation()}"
            self.running.poll(0.01)
            for reader in self.readers:
                reader.raise_unexpected()

    def node(self, name: str) -> NodeProcess:
        return self.running.nodes[name]

    def status(self, name: str) -> AdapterStatus:
        status = self.node(name).status
        assert status is not None, self._situation()
        return status

    def start_late(self, name: str) -> None:
        self.node(name).is_wanted = True
        assert self.running.start_nodes([name]), self.running.faults

    def alive(self) -> list[NodeProcess]:
        return [each for each in self.running.adapters() if each.member is not None]

    def active(self) -> NodeProcess:
        active = self.running.active()
        assert active is not None, self._situation()
        return active

    def is_pair(self) -> bool:
        """True if there are one active adapter and one synchronised backup, connected to each other and within the
        day."""
        told = [each.status for each in self.running.adapters()]
        return (
            all(each is not None and each.is_synchronised and each.peers for each in told)
            and all(_position(each).next_message_sequence > 1 for each in self.running.adapters())
            and sorted(each.role for each in told if each) == ["active", "backup"]
            and len({each.term for each in told if each}) == 1
        )

    def until_pair(self) -> None:
        for adapter in self.running.adapters():
            adapter.status = None  # the stored status may be out of date
        self.until(self.is_pair, "an active adapter and a synchronised backup")

    def kill(self, name: str, *, restart: bool = False) -> None:
        """Kill the node with kill -9."""
        node = self.node(name)
        assert node.member is not None
        node.is_wanted = restart
        node.member.kill()
        self.until(lambda node=node, dead=node.member: node.member is not dead, f"the end of {name}")  # type: ignore[misc]

    @contextmanager
    def halted(self, name: str) -> Iterator[None]:
        """Stop the process with SIGSTOP; it stays alive."""
        member = self.node(name).member
        assert member is not None
        suspend(member.pid)
        try:
            yield
        finally:
            resume(member.pid)

    def settle(self, *readers: "Reader") -> int:
        """Stop the exchange, wait until readers have everything, and return the last message's number."""
        self.running.stop_node(EXCHANGE)
        sent = self.node(EXCHANGE).sent
        self.until(lambda: all(_position(each).next_source_sequence == sent + 1 for each in self.alive()), "adapters")
        last = _position(self.active()).next_message_sequence - 1
        for reader in readers:
            self.until(lambda reader=reader: reader.last() >= last, f"message {last}, but it is {reader.last()}")  # type: ignore[misc]
        return last

    # Clients

    def connect(self, name: str) -> Client:
        return self._open.enter_context(penstock.connect(self.url, credentials=credentials(name)))

    def administrator(self, port: int | None = None) -> AdminClient:
        url = self.url if port is None else f"penstock://127.0.0.1:{port}"
        return self._open.enter_context(AdminClient.connect(url, credentials("root")))

    def read(self, subscription: Subscription) -> "Reader":
        return self._reading(Reader(subscription))

    def tally(self, subscription: Subscription) -> "Tally":
        return self._reading(Tally(subscription))

    def _reading(self, reader: R) -> R:
        self.readers.append(self._open.enter_context(reader))
        return reader

    def _situation(self) -> str:
        return "; ".join(
            f"{each.name}: {each.fault or (each.status and (each.status.role, each.status.streams))}"
            for each in self.running.nodes.values()
        )


class Reader:
    """A thread that reads a subscription until it ends, and records the messages."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.messages: list[Any] = []
        self.error: PenstockError | None = None
        self.is_end_expected = False
        self._thread = threading.Thread(target=self._run, name="reader")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.subscription.close()
        self._thread.join()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def raise_unexpected(self) -> None:
        if self.error is not None and not self.is_end_expected:
            raise self.error

    def numbers(self, stream_id: int = SOURCE_STREAM) -> list[int]:
        return [each.seq for each in list(self.messages) if each.source.stream_id == stream_id]

    def last(self, stream_id: int = SOURCE_STREAM) -> int:
        for message in reversed(self.messages):
            if message.source.stream_id == stream_id:
                number: int = message.seq
                return number
        return 0

    def check_complete(self, stream_id: int = SOURCE_STREAM, *, first: int | None = None) -> None:
        """Check that every number arrived once and in order, starting with the first one received."""
        numbers = self.numbers(stream_id)
        assert numbers, "nothing came"
        start = numbers[0] if first is None else first
        breaks = [(a, b) for a, b in zip([start - 1, *numbers], numbers, strict=False) if b != a + 1]
        assert not breaks, f"{breaks[:10]}, {self.subscription.losses[:10]}"
        lost = [each for each in self.subscription.losses if isinstance(each, MergeGap) and each.stream_id == stream_id]
        assert not lost

    def _run(self) -> None:
        try:
            self._read()
        except PenstockError as error:
            self.error = error

    def _read(self) -> None:
        for message in self.subscription:
            self.messages.append(message)


class Tally(Reader):
    """A reader for large numbers of messages: it counts them and checks their order."""

    count = 0
    is_ordered = True

    def _read(self) -> None:
        newest: dict[str, int] = {}
        for batch in self.subscription.batches():
            self.count += len(batch)
            for model, records in batch.records.items():
                numbers = [newest.get(model.name, 0), *records["source_seq"].tolist()]
                self.is_ordered = self.is_ordered and numbers == sorted(numbers)
                newest[model.name] = numbers[-1]


def _position(node: NodeProcess) -> Any:
    assert node.status is not None
    return next(each for each in node.status.streams if each.id == SOURCE_STREAM)


def _document(directory: Path, options: PlantOptions, channels: list[Channel], ports: list[int]) -> str:
    admin_port, standby_port, request_port, *peer_ports = ports
    for name in ("feed", "pair", "filter"):
        credentials_file(directory, name)
    (directory / "policy.toml").write_text(policy_text(RULES))
    PrivateKey(random_bytes(32)).write(directory / "signing.pem")
    lines = ", ".join(map(_inline, (free_channel(), free_channel())))
    peers = _PEER.format(standby_port), _PEER.format(admin_port)
    standby = _STANDBY.format(port=standby_port, peer=peers[1]) if options.standby else ""
    return _PLANT.format(
        admin_port=admin_port,
        peer=peers[0] if options.standby else "",
        standby=standby,
        topics=TOPICS,
        sync=options.sync,
        sealed=str(options.sealed).lower(),
        lines=lines,
        request_port=request_port,
        adapters="".join(
            _ADAPTER.format(
                name=name,
                channel=_inline(channel),
                port=port,
                journal=f'journal.path = "journal-{name}"' if options.journal else "",
            )
            for name, channel, port in zip(("adapter-a", "adapter-b"), channels, peer_ports, strict=True)
        ),
        rate=f"rate = {options.rate}" if options.rate else "speed = 0",
        symbols=options.symbols,
        messages=options.messages,
        exchange=EXCHANGE,
        more=options.more,
    )


def _inline(channel: Channel) -> str:
    return f'{{ group = "{channel.group}", port = {channel.port} }}'


_PEER = 'peer = {{ address = "penstock://127.0.0.1:{}", credentials = "pair.toml", check_s = 0.2, primary_lost_s = 1 }}'

_PLANT = """\
name = "test"

[[administration]]
name = "admin-1"
policy = "policy.toml"
signing_key = "signing.pem"
port = {admin_port}
limits = {{ key_grace_s = 0.2 }}
{peer}
{standby}
[[feed]]
name = "nasdaq"
table = "itch"
publish.sealed = {sealed}
admin = {{ credentials = "feed.toml", topics = {topics}, contributions = ["derived.>"] }}

[feed.sync]
{sync}

[[feed.streams]]
id = 1
name = "totalview"
lines = [{lines}]
request = {{ host = "127.0.0.1", port = {request_port} }}

[[feed.streams]]
id = 9
name = "desk"
framing = "contribution"
{adapters}
{more}
[[player]]
name = "{exchange}"
lines = [{lines}]
{rate}
port = {request_port}
generate = {{ symbols = {symbols}, messages = {messages} }}
"""

_STANDBY = """
[[administration]]
name = "admin-2"
role = "standby"
policy = "policy.toml"
signing_key = "signing.pem"
port = {port}
{peer}
"""

_ADAPTER = """
[[feed.adapter]]
name = "{name}"
publish.channel = {channel}
peers.port = {port}
{journal}
"""


def is_real(message: Any) -> bool:
    """True for a message of a feed, False for one of the plant's own messages."""
    return not message.topic.startswith("penstock.")
