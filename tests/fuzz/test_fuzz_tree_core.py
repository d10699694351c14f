"""Parties of every role that send arbitrary messages: the core of an agent raises nothing, and serves the others."""

import random
from typing import Any

import msgspec
import pytest

from penstock.base.clock import NS_PER_MS, SystemRandomness
from penstock.base.core import Tick
from penstock.base.counters import Counters
from penstock.net.core.control import ErrorMessage, Goodbye, Ping, Pong, encode_session
from penstock.net.core.framing import encode_frame
from penstock.tree.config import BackoffConfig, StreamConfig, TreeConfig
from penstock.tree.core.agent import DistributionAgent
from penstock.tree.core.control import AGENT_ROLES, TREE, Held, Message, StreamInfo, Subscribe, Want, Welcome
from penstock.tree.core.events import (
    Append,
    Appended,
    Arrived,
    CheckToken,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    Event,
    JournalRead,
    LinkClosed,
    Noticed,
    Party,
    ReadJournal,
    Recovered,
    Renewed,
    Start,
)
from penstock.tree.core.infostream import KINDS, Infostream, Neighbour, id_of
from penstock.tree.core.kernel._frame import (
    BLOCK_HEADER_SIZE,
    FRAME_LENGTH_SIZE,
    KIND_CONTROL,
    KIND_PUBLISHED,
    encode_block,
)
from penstock.tree.core.kernel._number import encode_published
from tree_kit import packet

HEALTHY = 1
NUMBERS = (0, 1, 2, 3, 5, 100, 2**16, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1)
TEXTS = (
    "", "s", "tree", "root", "here", "friend", "s.>", "s.a", "!s.a", "!>", ">", "*", "a..b", "s.*.x", "price > 1",
    "price >", "127.0.0.1:1", "a,b", "a b", "\x00", "ü" * 40, "x" * 5_000, "live", "oldest", "sequence", "time",
)  # fmt: skip
ROLES = ("subscriber", "agent", "standby", "peer", "publisher")
TYPES = {kind.__struct_config__.tag: kind for kind in Message.__args__}  # type: ignore[attr-defined]
STREAM = StreamInfo(1, "s", ("s.>",), ((1 << 16, 0),))


def value(chance: random.Random, depth: int = 0) -> Any:
    """A value that may or may not be valid for a field."""
    kind = chance.randrange(8 if depth < 3 else 4)
    if kind < 2:
        return chance.choice(NUMBERS)
    if kind == 2:
        return chance.choice(TEXTS)
    if kind == 3:
        return chance.choice((None, True, False, -1, 1.5, b"bytes"))
    return [value(chance, depth + 1) for _ in range(chance.randrange(4))]


def likely(chance: random.Random, info: Any) -> Any:
    """A value of the field's type, at its limits and beyond."""
    types = msgspec.inspect
    match info:
        case types.IntType():
            return chance.choice(NUMBERS)
        case types.BoolType():
            return chance.random() < 0.5
        case types.LiteralType(values):
            return chance.choice(values)
        case types.StrType():
            return chance.choice(TEXTS)
        case types.VarTupleType(item):
            return [likely(chance, item) for _ in range(chance.randrange(4))]
        case types.TupleType(items):
            return [likely(chance, each) for each in items]
        case types.StructType(array_like=True):
            return [likely(chance, field.type) for field in info.fields]
        case types.StructType():
            return {field.encode_name: likely(chance, field.type) for field in info.fields}
    return value(chance)


def message(chance: random.Random) -> bytes:
    """A control frame: a map with one of the protocol's types and arbitrary fields."""
    if chance.random() < 0.05:
        session = chance.choice((Goodbye("bye"), Ping(5), Pong(1, 2, 3), ErrorMessage("x", "y")))
        return encode_frame(encode_session(session))
    tag = chance.choice((*TYPES, "unheard-of"))
    fields: dict[str, Any] = {"type": tag}
    if tag in TYPES:
        info = msgspec.inspect.type_info(TYPES[tag])
        assert isinstance(info, msgspec.inspect.StructType)
        for field in info.fields:
            if chance.random() < 0.95:
                fields[field.encode_name] = likely(chance, field.type)
            if chance.random() < 0.03:
                fields[field.encode_name] = value(chance)
    return encode_frame(msgspec.msgpack.encode(fields))


def said(chance: random.Random, speaker: Infostream) -> bytes:
    """An infostream message, valid or not."""
    kind = chance.choice(KINDS)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        if field.type is bool:
            fields[field.name] = chance.random() < 0.5
        elif field.type is int:
            fields[field.name] = chance.choice((0, 50, 255) if field.name == "percent" else NUMBERS[:7])
        elif field.name == "agents":
            places = ("127.0.0.1:1", "here:1", "", "nowhere")
            fields[field.name] = tuple(
                Neighbour(chance.choice(("a", "root")), chance.choice(places), chance.choice((0, 7, 100)))
                for _ in range(chance.randrange(3))
            )
        else:
            text = chance.choice([each for each in TEXTS if len(each) < 40 and each != "\x00"])
            fields[field.name] = text if field.type is str else tuple(text.split())
    block = bytearray(encode_block(speaker.encode(kind(**fields), chance.choice((0, 1, 1 << 16)))))
    if chance.random() < 0.05:
        block[chance.randrange(BLOCK_HEADER_SIZE, len(block))] ^= 1 << chance.randrange(8)
    return bytes(block)


class Rig:
    """A core with its instructions executed; HEALTHY is a child that behaves."""

    def __init__(self, chance: random.Random, **config: Any) -> None:
        self.chance = chance
        settings = {"name": "here", "backoff": BackoffConfig(base_ms=1, max_ms=5), "history_bytes": 1024 * 1024}
        self.config = TreeConfig(**{**settings, **config})
        self.core = DistributionAgent(self.config, SystemRandomness(), Counters("tree"))
        self.now_ns = 0
        self.links = HEALTHY
        self.closed: set[int] = set()
        self.dialled: dict[int, Infostream] = {}
        self.last = 0
        stored = (Recovered(STREAM, 1, 0),) if self.config.role == "standby" else ()
        self.handle(Start(streams=stored, place="here:1", term=1 << 16 if stored else 0))

    def handle(self, event: Event) -> None:
        self.now_ns += NS_PER_MS
        waiting = [event]
        while waiting:
            for each in self.core.handle(waiting.pop(0), self.now_ns):
                waiting += self._answers(each)
            due_ns = self.core.next_deadline_ns()
            if due_ns is not None and due_ns <= self.now_ns:
                waiting.append(Tick())

    def _answers(self, instruction: Any) -> list[Event]:
        match instruction:
            case Append(stream=stream, through=through):
                return [Appended(stream, through)]
            case ReadJournal(request=request, after=after):
                return [JournalRead(request, b"", after, after)]
            case CheckToken(link=link):
                return [Renewed(link, None, "" if self.chance.random() < 0.5 else "not good")]
            case Connect(attempt=attempt):
                if self.chance.random() < 0.3:
                    return [ConnectFailed(attempt, "nobody is there")]
                link = self.new_link()
                self.dialled[link] = Infostream("friend")
                return [Connected(attempt, link, "friend")]
            case Close(link=link):
                self.closed.add(link)
                self.dialled.pop(link, None)
                return [LinkClosed(link)]
        return []

    def new_link(self) -> int:
        self.links += 1
        return self.links

    def arrive(self, link: int, name: str, role: Any, **party: Any) -> None:
        self.handle(Arrived(link, Party(name, role, **party)))

    def receive(self, link: int, data: bytes) -> None:
        if link in self.core.fanout.links():
            self.core.fanout.receive(link, data)
            self.handle(Noticed())

    def heard(self, link: int) -> list[Any]:
        """Control messages for the link."""
        found = []
        while data := self.core.fanout.take(link, 1 << 20):
            while data:
                size = FRAME_LENGTH_SIZE + int.from_bytes(data[:FRAME_LENGTH_SIZE], "little")
                if data[FRAME_LENGTH_SIZE] >= KIND_CONTROL:
                    found.append(TREE.decode(data[FRAME_LENGTH_SIZE:size]))
                data = data[size:]
        return found

    def empty(self) -> None:
        for link in self.core.fanout.links():
            self.core.fanout.take(link, 1 << 20)

    def check_served(self) -> None:
        assert HEALTHY not in self.closed
        self.receive(HEALTHY, encode_frame(encode_session(Ping(77))))
        assert Pong in [type(each) for each in self.heard(HEALTHY)]


def anything(rig: Rig, chance: random.Random, speaker: Infostream, *, is_parent: bool = False) -> bytes:
    kind = chance.random()
    if kind < 0.7:
        return message(chance)
    if kind < 0.85:
        return said(chance, speaker)
    if kind < 0.92:
        numbers = range(1, chance.randrange(2, 5))
        block = b"".join(encode_published(5, each, 0, chance.choice(("s.a", "t")), b"x") for each in numbers)
        return encode_block(block, kind=KIND_PUBLISHED)
    terms, legs = (0, 1, 1 << 16, (1 << 16) + 1, 2**32 - 1), (0, 1, 2, 3)
    made = packet(rig.last + chance.choice((0, 1, 2, 9)), "s.a", tree_id=id_of("tree"), term=chance.choice(terms))
    rig.last += is_parent
    return encode_block(made, leg=chance.choice(legs))


def run(rig: Rig, chance: random.Random, steps: int) -> None:
    """Parties of every role connect, send messages and are disconnected."""
    parties: dict[int, Infostream] = {}
    for _ in range(steps):
        if len(parties) < 5:
            link, role = rig.new_link(), chance.choice(ROLES)
            name = "friend" if role in AGENT_ROLES else f"p{link}"
            parties[link] = Infostream(name)
            rig.arrive(
                link,
                name,
                role,
                publisher_id=5 if role == "publisher" else 0,
                place=chance.choice(("", "127.0.0.1:5")),
                cls=chance.choice(("lossless", "conflating", "disconnect")),
            )
        speakers = {**parties, **rig.dialled}
        link = chance.choice(list(speakers))
        rig.receive(link, anything(rig, chance, speakers[link], is_parent=link in rig.dialled))
        if chance.random() < 0.05:
            rig.handle(LinkClosed(link))
            rig.closed.add(link)
            rig.dialled.pop(link, None)
        if chance.random() < 0.1:
            rig.empty()
        if chance.random() < 0.02:
            rig.now_ns += 600 * NS_PER_MS
            rig.receive(HEALTHY, encode_frame(encode_session(Pong(1, 2, 3))))
            rig.handle(Tick())
        parties = {each: speaker for each, speaker in parties.items() if each not in rig.closed}


@pytest.mark.spec("TREE-3", "TREE-10")
def test_a_root_serves_other_parties_whatever_one_party_sends(soak: bool) -> None:
    for seed in range(300 if soak else 15):
        chance = random.Random(seed)
        root = Rig(chance, role="root", streams=(StreamConfig(name="s", topics=("s.>",)),), replicate="asynchronous")
        root.arrive(HEALTHY, "healthy", "subscriber")
        root.receive(HEALTHY, encode_frame(TREE.encode(Subscribe(1, "s", (Want(("s.>",)),)), 1_000)))
        assert Held in [type(each) for each in root.heard(HEALTHY)]
        run(root, chance, 300)
        root.check_served()
        source = root.new_link()
        root.arrive(source, "source", "publisher", publisher_id=9)
        before = root.core.fanout.link(HEALTHY).packets_out
        root.receive(source, encode_block(encode_published(9, 1, 0, "s.a", b"x"), kind=KIND_PUBLISHED))
        root.heard(HEALTHY)
        assert root.core.fanout.link(HEALTHY).packets_out == before + 1


@pytest.mark.spec("TREE-3", "TREE-4")
@pytest.mark.parametrize("role", ["agent", "standby"])
def test_an_agent_serves_its_children_whatever_its_parent_sends(role: str, soak: bool) -> None:
    adopted = 0
    for seed in range(300 if soak else 15):
        chance = random.Random(seed)
        agent = Rig(chance, role=role, parent="127.0.0.1:9", alternates=("127.0.0.1:8",), peers=("127.0.0.1:7",))
        if role == "agent":
            agent.arrive(HEALTHY, "healthy", "subscriber")
        for _ in range(6):
            welcome = Welcome("friend", "tree", 1 << 16, ("root", "friend"), True, (STREAM,))
            for link in list(agent.dialled):
                agent.receive(link, encode_frame(TREE.encode(welcome, 10_000)))
            adopted += agent.core.membership.is_rooted
            run(agent, chance, 60)
            agent.now_ns += 20 * NS_PER_MS
            agent.handle(Tick())
        if role == "agent":
            agent.check_served()
    assert adopted > 15
