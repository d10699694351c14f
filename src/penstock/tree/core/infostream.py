"""The infostream: what an agent tells its direct neighbours, as messages of stream 0 (docs/reference/protocol/tree.md).

Each kind is a type here, has a topic `infostream.<kind>`, and is a record of one of the shipped models tree_*. An agent
numbers what it says, whomever it says it to; a child hears all of it in that order, and passes nothing on.

    packet = Infostream("leaf-1").encode(Through(stream=1, last=70), now_ns)
    decode_info(packet).info == Through(stream=1, last=70)
"""

import hashlib
from typing import ClassVar, NamedTuple, TypeAlias

import msgspec

from penstock.base.counters import Cause
from penstock.base.errors import PacketError, PenstockError
from penstock.model import MessageModel, shipped
from penstock.wire import Packer, decode

STREAM = 0
"""The infostream's number, in packets and in the fan-out."""

NAME = "infostream"
PREFIX = "infostream."
TEXT_SIZE_MAX = 1_024
"""Bytes of a list in one message."""

INFO_PACKET_SIZE_MAX = 16_384


def id_of(name: str) -> int:
    """A publisher id for the name of a tree or an agent: the same everywhere, never 0."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") | 1


class Neighbour(msgspec.Struct, frozen=True):
    """An agent that a child could go to."""

    name: str
    place: str
    percent: int = 0
    """Its load."""

    def __str__(self) -> str:
        return f"{self.name},{self.place},{self.percent}"

    @staticmethod
    def parse(text: str) -> "Neighbour":
        words = text.split(",")
        if len(words) != 3 or not words[2].isdigit() or len(words[2]) > 3:
            raise PacketError(f"{text[:80]!r} is no agent", cause=Cause.MESSAGE, where="infostream")
        return Neighbour(words[0], words[1], int(words[2]))


class Path(msgspec.Struct, frozen=True):
    """Where this agent is."""

    kind: ClassVar[str] = "path"
    model: ClassVar[str] = "tree_path"
    agent: str
    path: tuple[str, ...]
    is_rooted: bool
    term: int


class ParentLost(msgspec.Struct, frozen=True):
    """This agent has no parent any more. It looks for another by its own table; so may its children, by theirs."""

    kind: ClassVar[str] = "parent_lost"
    model: ClassVar[str] = "tree_path"
    agent: str
    other: str
    """The parent that it had."""
    term: int


class ParentFound(msgspec.Struct, frozen=True):
    """This agent has a parent again, or another one."""

    kind: ClassVar[str] = "parent_found"
    model: ClassVar[str] = "tree_path"
    agent: str
    path: tuple[str, ...]
    other: str
    is_rooted: bool
    term: int


class Through(msgspec.Struct, frozen=True):
    """The child has everything that it wants of the stream up to this sequence."""

    kind: ClassVar[str] = "through"
    model: ClassVar[str] = "tree_position"
    stream: int
    last: int
    term: int = 0


class Lagging(msgspec.Struct, frozen=True):
    """The child did not keep up: its leg is not live any more, and it has what it wants up to here. It is to fetch the
    rest."""

    kind: ClassVar[str] = "lagging"
    model: ClassVar[str] = "tree_position"
    stream: int
    leg: int
    last: int
    term: int = 0


class Conflated(msgspec.Struct, frozen=True):
    """A receipt: messages were left out for newer ones of the same topic, as the child's class allows."""

    kind: ClassVar[str] = "conflated"
    model: ClassVar[str] = "tree_position"
    stream: int
    count: int
    last: int
    """The newest sequence before which they were."""


class Gone(msgspec.Struct, frozen=True):
    """A receipt: messages from `first` to `last` are kept nowhere any more; the leg goes on after them."""

    kind: ClassVar[str] = "gone"
    model: ClassVar[str] = "tree_position"
    stream: int
    leg: int
    first: int
    last: int


class Diverged(msgspec.Struct, frozen=True):
    """A receipt: what came as messages from `first` to `last` of this term was only known to a root that is lost. The
    stream goes on with others of the same sequences."""

    kind: ClassVar[str] = "diverged"
    model: ClassVar[str] = "tree_position"
    stream: int
    term: int
    first: int
    last: int


class Siblings(msgspec.Struct, frozen=True):
    """Agents below this one."""

    kind: ClassVar[str] = "siblings"
    model: ClassVar[str] = "tree_agents"
    agents: tuple[Neighbour, ...]


class Alternates(msgspec.Struct, frozen=True):
    """Agents beside this one: where its children can go when they lose it."""

    kind: ClassVar[str] = "alternates"
    model: ClassVar[str] = "tree_agents"
    agents: tuple[Neighbour, ...]


class MoveTo(msgspec.Struct, frozen=True):
    """The child is asked to have another parent for the time being."""

    kind: ClassVar[str] = "move"
    model: ClassVar[str] = "tree_order"
    place: str
    reason: str = ""


class ReturnTo(msgspec.Struct, frozen=True):
    """The child is asked to go back to the agent that sent it."""

    kind: ClassVar[str] = "return"
    model: ClassVar[str] = "tree_order"
    agent: str
    reason: str = ""


class Stopping(msgspec.Struct, frozen=True):
    """This agent ends in order; its children do as if they had lost it."""

    kind: ClassVar[str] = "stopping"
    model: ClassVar[str] = "tree_order"
    agent: str
    reason: str = ""


class Load(msgspec.Struct, frozen=True):
    """How busy this agent is."""

    kind: ClassVar[str] = "load"
    model: ClassVar[str] = "tree_order"
    agent: str
    percent: int


class Revoked(msgspec.Struct, frozen=True):
    """The child gets no more on these topics; none named: of anything."""

    kind: ClassVar[str] = "revoked"
    model: ClassVar[str] = "tree_revoked"
    topics: tuple[str, ...]
    reason: str = ""


class StreamDefined(msgspec.Struct, frozen=True):
    """There is a stream, or a known one goes on in a new term."""

    kind: ClassVar[str] = "stream"
    model: ClassVar[str] = "tree_stream"
    number: int
    name: str
    topics: tuple[str, ...]
    term: int
    after: int


class Root(msgspec.Struct, frozen=True):
    """Who is the root; told on from agent to agent."""

    kind: ClassVar[str] = "root"
    model: ClassVar[str] = "tree_root"
    term: int
    root: str
    standby: str = ""


Info: TypeAlias = (
    Path
    | ParentLost
    | ParentFound
    | Through
    | Lagging
    | Conflated
    | Gone
    | Diverged
    | Siblings
    | Alternates
    | MoveTo
    | ReturnTo
    | Stopping
    | Load
    | Revoked
    | StreamDefined
    | Root
)

KINDS: tuple[type[Info], ...] = (
    Path, ParentLost, ParentFound, Through, Lagging, Conflated, Gone, Diverged, Siblings, Alternates, MoveTo, ReturnTo,
    Stopping, Load, Revoked, StreamDefined, Root,
)  # fmt: skip

_BY_TOPIC = {f"{PREFIX}{kind.kind}": kind for kind in KINDS}
_FIELDS = {kind: msgspec.structs.fields(kind) for kind in KINDS}


class ReceivedInfo(NamedTuple):
    """A message of the infostream as it came."""

    publisher_id: int
    sequence: int
    info: Info


class Infostream:
    """What one agent says: encodes and numbers it."""

    def __init__(self, agent: str) -> None:
        self._id = id_of(agent)
        self.sequence = 0

    def encode(self, info: Info, term: int = 0) -> bytes:
        """The packet of the next sequence."""
        self.sequence += 1
        packer = Packer(self._id, STREAM, term, first_sequence=self.sequence, packet_size_max=INFO_PACKET_SIZE_MAX)
        model = model_of(type(info))
        record = model.new(**{field.name: _written(getattr(info, field.name)) for field in _FIELDS[type(info)]})
        topic = f"{PREFIX}{info.kind}"
        packets = packer.add(topic, bytes(record), model_id=model.id, model_version=model.version)
        last = packer.flush()
        assert last is not None
        assert not packets, "an infostream message is one packet"
        return last


def decode_info(packet: bytes) -> ReceivedInfo:
    """What a packet of stream 0 says; PacketError if that is nothing known or not well formed."""
    whole = decode(packet)
    if whole.group != STREAM or len(whole) != 1:
        raise PacketError("is no message of an infostream", cause=Cause.MESSAGE, where="infostream")
    message = whole[0]
    kind = _BY_TOPIC.get(message.topic)
    if kind is None or message.model_id != model_of(kind).id:
        raise PacketError(f"says nothing known: {message.topic[:80]!r}", cause=Cause.MESSAGE, where="infostream")
    try:
        record = model_of(kind).view(bytes(message.payload), message.model_version)
        values = {field.name: _read(field, getattr(record, field.name)) for field in _FIELDS[kind]}
        return ReceivedInfo(whole.publisher_id, whole.sequence, msgspec.convert(values, kind))
    except (PenstockError, msgspec.ValidationError) as error:
        raise PacketError(f"is no {kind.kind}: {error}", cause=Cause.MESSAGE, where="infostream") from None


def model_of(kind: type[Info]) -> MessageModel:
    return shipped(kind.model)


def portions(texts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """A list of texts, cut so that each part fits one message; a text that fits none is left out."""
    found: list[tuple[str, ...]] = []
    part: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode()) + 1
        if length > TEXT_SIZE_MAX:
            continue
        if size + length > TEXT_SIZE_MAX:
            found.append(tuple(part))
            part, size = [], 0
        part.append(text)
        size += length
    return [*found, tuple(part)] if part or not found else found


def _written(value: object) -> object:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return int(value) if isinstance(value, bool) else value


def _read(field: msgspec.structs.FieldInfo, value: object) -> object:
    if field.type is bool:
        return bool(value)
    if isinstance(value, str) and field.type is not str:
        words = value.split()
        return tuple(map(Neighbour.parse, words)) if field.name == "agents" else tuple(words)
    return value
