"""The infostream: messages of an agent to its direct neighbours, as stream 0 (docs/reference/protocol/tree.md).

Each kind is a type here, has a topic `infostream.<kind>`, and is a record of one of the shipped models tree_*. An agent
numbers its messages, whichever neighbours they go to; a child receives all of its own in that order, and forwards none.

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
"""Maximum size of a list in one message."""

INFO_PACKET_SIZE_MAX = 16_384


def id_of(name: str) -> int:
    """A publisher id for the name of a tree or an agent: equal everywhere, never 0."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") | 1


class Neighbour(msgspec.Struct, frozen=True):
    """An agent that a child could move to."""

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
    """The place of this agent."""

    kind: ClassVar[str] = "path"
    model: ClassVar[str] = "tree_path"
    agent: str
    path: tuple[str, ...]
    is_rooted: bool
    term: int


class ParentLost(msgspec.Struct, frozen=True):
    """This agent has lost its parent, and looks for another by its own rules. Its children may do so, too, by
    theirs."""

    kind: ClassVar[str] = "parent_lost"
    model: ClassVar[str] = "tree_path"
    agent: str
    other: str
    """The lost parent."""
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
    """The child has all messages of its legs in the stream up to this sequence."""

    kind: ClassVar[str] = "through"
    model: ClassVar[str] = "tree_position"
    stream: int
    last: int
    term: int = 0


class Lagging(msgspec.Struct, frozen=True):
    """The child did not keep up: its leg is no longer live, and is complete up to here. The child has to fetch the
    rest."""

    kind: ClassVar[str] = "lagging"
    model: ClassVar[str] = "tree_position"
    stream: int
    leg: int
    last: int
    term: int = 0


class Conflated(msgspec.Struct, frozen=True):
    """A receipt: messages were replaced by newer ones of the same topic, as the child's class allows."""

    kind: ClassVar[str] = "conflated"
    model: ClassVar[str] = "tree_position"
    stream: int
    count: int
    last: int
    """The newest sequence before which messages were omitted."""


class Gone(msgspec.Struct, frozen=True):
    """A receipt: messages from `first` to `last` are no longer kept anywhere; the leg continues after them."""

    kind: ClassVar[str] = "gone"
    model: ClassVar[str] = "tree_position"
    stream: int
    leg: int
    first: int
    last: int


class Diverged(msgspec.Struct, frozen=True):
    """A receipt: messages from `first` to `last` of this term were known only to a root that was lost. The stream
    continues with other messages of the same sequences."""

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
    """Siblings of this agent: where its children can go when they lose it."""

    kind: ClassVar[str] = "alternates"
    model: ClassVar[str] = "tree_agents"
    agents: tuple[Neighbour, ...]


class MoveTo(msgspec.Struct, frozen=True):
    """Asks the child to change to another parent temporarily."""

    kind: ClassVar[str] = "move"
    model: ClassVar[str] = "tree_order"
    place: str
    reason: str = ""


class ReturnTo(msgspec.Struct, frozen=True):
    """Asks the child to return to the agent that moved it."""

    kind: ClassVar[str] = "return"
    model: ClassVar[str] = "tree_order"
    agent: str
    reason: str = ""


class Stopping(msgspec.Struct, frozen=True):
    """This agent shuts down; its children react as to a loss."""

    kind: ClassVar[str] = "stopping"
    model: ClassVar[str] = "tree_order"
    agent: str
    reason: str = ""


class Load(msgspec.Struct, frozen=True):
    """The load of this agent."""

    kind: ClassVar[str] = "load"
    model: ClassVar[str] = "tree_order"
    agent: str
    percent: int


class Revoked(msgspec.Struct, frozen=True):
    """The child gets no more messages on these topics; empty: on all topics."""

    kind: ClassVar[str] = "revoked"
    model: ClassVar[str] = "tree_revoked"
    topics: tuple[str, ...]
    reason: str = ""


class StreamDefined(msgspec.Struct, frozen=True):
    """A new stream, or a known one in a new term."""

    kind: ClassVar[str] = "stream"
    model: ClassVar[str] = "tree_stream"
    number: int
    name: str
    topics: tuple[str, ...]
    term: int
    after: int


class Root(msgspec.Struct, frozen=True):
    """The current root, forwarded from agent to agent."""

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
    """A received message of the infostream."""

    publisher_id: int
    sequence: int
    info: Info


class Infostream:
    """Encodes and numbers the messages of one agent."""

    def __init__(self, agent: str) -> None:
        self._id = id_of(agent)
        self.sequence = 0

    def encode(self, info: Info, term: int = 0) -> bytes:
        """Return the packet with the next sequence."""
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
    """Decode a packet of stream 0. Raise PacketError if it is unknown or invalid."""
    whole = decode(packet)
    if whole.group != STREAM or len(whole) != 1:
        raise PacketError("is not a message of an infostream", cause=Cause.MESSAGE, where="infostream")
    message = whole[0]
    kind = _BY_TOPIC.get(message.topic)
    if kind is None or message.model_id != model_of(kind).id:
        raise PacketError(f"has an unknown topic: {message.topic[:80]!r}", cause=Cause.MESSAGE, where="infostream")
    try:
        record = model_of(kind).view(bytes(message.payload), message.model_version)
        values = {field.name: _read(field, getattr(record, field.name)) for field in _FIELDS[kind]}
        return ReceivedInfo(whole.publisher_id, whole.sequence, msgspec.convert(values, kind))
    except (PenstockError, msgspec.ValidationError) as error:
        raise PacketError(f"is not a valid {kind.kind}: {error}", cause=Cause.MESSAGE, where="infostream") from None


def model_of(kind: type[Info]) -> MessageModel:
    return shipped(kind.model)


def portions(texts: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Split a list of texts into parts that fit into one message; longer texts are dropped."""
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
