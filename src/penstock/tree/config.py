"""What an agent of a tree is told: its place in it, its streams, what it does when things go wrong, and every bound."""

import re
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError
from penstock.journal import JournalConfig
from penstock.middleware.core.reserved_topics import SESSION_TOPIC
from penstock.net.core.control import Name
from penstock.net.page_access import PageAccessConfig
from penstock.net.place import parse_place
from penstock.runtime.accounts import AccountsConfig
from penstock.security.core.access import AdminAccess, AnyPort, ControlAccess
from penstock.topics import Interest
from penstock.topics.overlap import may_meet

PORT_DEFAULT = 7420
MIB = 1024 * 1024

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]

AgentRole: TypeAlias = Literal["root", "standby", "agent"]
Class: TypeAlias = Literal["lossless", "conflating", "disconnect"]
"""What becomes of a child that does not keep up: it fetches later what it did not take, it gets the newest only, or it
is cut off."""

Step: TypeAlias = Literal["parent", "alternate", "sibling", "wait"]
"""Where a child looks: at its own parent again, at its alternates in their order, at agents that its parent said are
below the same parent, nowhere for a while."""

_SESSIONS = Interest.parse(SESSION_TOPIC)
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}


def duration_s(text: str, *, where: str = "") -> int:
    """ "90s", "15m", "6h", "7d" or "2w"; "" is 0."""
    if not text:
        return 0
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None:
        raise ConfigurationError(f"{text!r} is no span of time", where=where, hint='write "90s", "6h" or "7d"')
    return int(found[1]) * _UNITS_S[found[2]]


def with_session_topic(topics: tuple[str, ...], feed: Sequence[Interest]) -> tuple[str, ...]:
    """The topics of a stream, and the topic of session events if the stream may have messages of a feed and its topics
    do not include that topic."""
    own = [Interest.parse(each) for each in topics]
    is_fed = any(may_meet(one, other) for one in own for other in feed if not other.negative)
    return (*topics, SESSION_TOPIC) if is_fed and not any(may_meet(each, _SESSIONS) for each in own) else topics


class StreamConfig(Config, frozen=True):
    """A stream, at the root: everything on these topics, in one order."""

    name: Name
    topics: tuple[str, ...]
    retain: str = "7d"
    """How long messages are kept at least, as "90s", "6h" or "7d"; empty: for ever."""

    retain_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The journal's bytes above which the oldest are dropped earlier than that; 0: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"stream {self.name}"
        if not self.topics:
            raise ConfigurationError("a stream has topics", where=where)
        for topic in self.topics:
            if Interest.parse(topic).negative:
                raise ConfigurationError(f"{topic!r} is negative", where=where, hint="say what the stream has")
        duration_s(self.retain, where=where)

    @property
    def retain_s(self) -> int:
        return duration_s(self.retain)


class BackoffConfig(Config, frozen=True):
    """Pauses between attempts to find a parent."""

    base_ms: Milliseconds = 50
    factor: Annotated[float, msgspec.Meta(ge=1.0, le=10.0)] = 2.0
    jitter: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    """Share of each pause that is chance, so that many children do not come at once."""

    max_ms: Milliseconds = 5_000


class ReactionConfig(Config, frozen=True):
    """The administrator's table: what an agent does on what it hears from its parent, or does not hear any more."""

    parent_lost: tuple[Step, ...] = ("alternate", "sibling", "wait")
    """When the link to the parent is gone; from the first step to the last, and over again, with pauses."""

    parent_unrooted: tuple[Step, ...] = ("wait",)
    """When the parent says that it has lost its own."""

    move: Literal["obey", "ignore"] = "obey"
    """When the parent asks it to go to another."""

    send_back: Literal["obey", "ignore"] = "obey"
    """When the other asks it to return."""

    root_lost: Literal["promote", "wait"] = "wait"
    """Of a standby: become the root when the root was gone for promote_after_ms, or wait for an operator."""

    promote_after_ms: Milliseconds = 2_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parent_lost or not self.parent_unrooted:
            raise ConfigurationError("a reaction has at least one step", where="on", hint='["wait"] does nothing')


class TreeConfig(Config, frozen=True):
    """What the core of an agent needs; AgentConfig has the rest of a node."""

    name: Name
    tree: Name = "tree"
    """All agents of a tree say the same."""

    role: AgentRole = "agent"
    parent: str = ""
    """host:port of the agent above; for a standby, of the root. A root has none."""

    alternates: tuple[str, ...] = ()
    """Others that can be its parent, in this order."""

    peers: tuple[str, ...] = ()
    """Neighbours that are linked to besides, for redundancy: what is new goes both ways."""

    standby: str = ""
    """At the root: host:port of the standby, which the root announces to its children."""

    agents: tuple[Name, ...] | dict[Name, Name] = ()
    """Names that may be agents, standbys or peers below this one; empty: every name. Where tokens are asked for, each
    shows that of the client with its name, or of the one that a table gives: { leaf = "nodes" }."""

    on: ReactionConfig = ReactionConfig()
    backoff: BackoffConfig = BackoffConfig()

    streams: tuple[StreamConfig, ...] = ()
    """At the root (and its standby)."""

    create_on_use: bool = False
    """At the root: whether publishing on a topic of no stream makes one, called after the topic's first level."""

    streams_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1_024
    persist: Literal["written", "synced"] = "written"
    """At the root: what is done with a message before it is distributed and acknowledged: given to the disk's cache, or
    brought to the disk."""

    replicate: Literal["none", "asynchronous", "synchronous"] = "none"
    """At the root: whether a standby must have a message before it is distributed and acknowledged (synchronous)."""

    replicate_wait_ms: Milliseconds = 1_000
    """How long a synchronous standby that does not answer is waited for; then the root goes on without it."""

    balance_high: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Load in percent from which on children are asked to go to a sibling for the time being; 0: never."""

    balance_low: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    """Load below which a sibling is sent others' children, and is sent its own back."""

    children_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 4_096
    legs_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    """Subscriptions of one child; and to the parent, above which whole streams are asked for."""

    publishers_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Whose last numbers the root remembers."""

    history_bytes: Annotated[int, msgspec.Meta(ge=MIB, le=2**40)] = 64 * MIB
    """The newest messages, kept in memory for children that come or come back."""

    queue_packets: Annotated[int, msgspec.Meta(ge=16, le=2**24)] = 65_536
    """Messages that wait for one child."""

    fetch_bytes_max: Annotated[int, msgspec.Meta(ge=65_536, le=2 * MIB)] = MIB
    """Bytes of one portion of history."""

    heartbeat_ms: Milliseconds = 500
    """Interval at which children get the positions of the streams."""

    silence_ms: Milliseconds = 5_000
    """Silence after which a parent is taken for dead."""

    @property
    def bearers(self) -> dict[str, str]:
        """By the name of an agent: the client whose token it shows."""
        return dict(self.agents) if isinstance(self.agents, dict) else {name: name for name in self.agents}

    def topics_on_use(self, name: str) -> tuple[str, ...]:
        """The topics of a stream that `create_on_use` creates for the first level `name`."""
        return f"{name}.>", name

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"agent {self.name}"
        if (self.role == "root") == bool(self.parent):
            what = "a root has no parent" if self.parent else f"the {self.role} needs a parent"
            raise ConfigurationError(what, where=where, hint='parent = "host:port"')
        for place in filter(None, (self.parent, self.standby, *self.alternates, *self.peers)):
            parse_place(place)
        if self.role == "root" and self.alternates:
            raise ConfigurationError("a root has no alternate parents", where=where)
        if self.role == "agent" and (self.streams or self.create_on_use):
            raise ConfigurationError("streams are defined at the root", where=where)
        names = [each.name for each in self.streams]
        if len(set(names)) < len(names):
            raise ConfigurationError("two streams have one name", where=where)
        if self.silence_ms < 2 * self.heartbeat_ms:
            raise ConfigurationError("silence_ms is below two heartbeats", where=where)


class AgentAccess(ControlAccess, frozen=True):
    """Where children connect."""

    port: AnyPort = PORT_DEFAULT
    advertised: str = ""
    """host:port that is announced to others; empty: host and port."""


class AgentConfig(TreeConfig, frozen=True, kw_only=True):
    """One agent: these keys, and those of its core (TreeConfig)."""

    control: AgentAccess = AgentAccess()
    ca_file: str = ""
    secret_file: str = ""
    """TLS and a secret, to reach parents and peers on other hosts."""

    subscribe: tuple[str, ...] = ()
    """At the root: topics of the plant's feeds that are published in the tree, by the administration server; with
    credentials of a client with the role `filter` that may receive them."""

    models: tuple[str, ...] = ()
    """Documents of message models that conditions may speak of, besides those shipped."""

    operators: tuple[Name, ...] = ()
    """Who may give orders (`penstock agent move` and others): clients of the administration server; without one, names;
    empty: whoever can connect and nobody asks for tokens."""

    admin: AdminAccess = AdminAccess()
    """By whose tokens it is known what a subscriber or publisher may have; without, everybody may have everything."""

    accounts: AccountsConfig = AccountsConfig()
    state_directory: str = ""
    """Where the root keeps its streams, and every agent what tokens are checked with. A root needs one."""

    journal: JournalConfig = JournalConfig(segment_bytes=16 * MIB, linger_us=10_000)
    """How the root writes its streams' journals; retention is each stream's own. Nobody waits for what lingers but with
    persist = "synced", which has it written at once; the tail keeps it meanwhile."""

    tail_bytes: Annotated[int, msgspec.Meta(ge=4 * 65_536, le=2**32)] = 32 * MIB
    """Bytes of the file in which the root's newest messages outlive its process; taken from the disk at the start."""

    sends_bytes_max: Annotated[int, msgspec.Meta(ge=65_536, le=2**30)] = 1024 * 1024
    """Bytes that wait in a child's socket buffers of this process, above which its messages wait in the queue."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()
    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor the data thread is bound to; -1 for none."""

    def with_session_topics(self) -> "AgentConfig":
        """Streams with messages of the plant's feeds also have the session events of these feeds."""
        wanted = [Interest.parse(each) for each in self.subscribe]
        streams = tuple(
            msgspec.structs.replace(stream, topics=with_session_topic(stream.topics, wanted)) for stream in self.streams
        )
        return msgspec.structs.replace(self, streams=streams)

    def topics_on_use(self, name: str) -> tuple[str, ...]:
        wanted = [Interest.parse(each) for each in self.subscribe]
        return with_session_topic(super().topics_on_use(name), wanted)

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"agent {self.name}"
        self.admin.check(where)
        if self.role != "agent" and not self.state_directory:
            raise ConfigurationError(f"a {self.role} keeps its streams", where=where, hint="say state_directory")
        if self.subscribe and self.role == "agent":
            raise ConfigurationError("feeds come into the tree at its root", where=where)
        if self.subscribe and not self.admin.url:
            raise ConfigurationError("subscribe needs an administration server", where=where)
