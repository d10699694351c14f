"""Configuration of an agent: its place in the tree, its streams, its reactions to failures, and its limits."""

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
"""Handling of a child that does not keep up: it fetches missed messages later, gets only the newest ones, or is cut
off."""

Step: TypeAlias = Literal["parent", "alternate", "sibling", "wait"]
"""Where a child looks for a parent: at its own parent again, at its alternates in order, at siblings that its parent
named, or nowhere for a while."""

_SESSIONS = Interest.parse(SESSION_TOPIC)
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}


def duration_s(text: str, *, where: str = "") -> int:
    """Parse "90s", "15m", "6h", "7d" or "2w"; "" is 0."""
    if not text:
        return 0
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", text)
    if found is None:
        raise ConfigurationError(f"{text!r} is not a time span", where=where, hint='write "90s", "6h" or "7d"')
    return int(found[1]) * _UNITS_S[found[2]]


def with_session_topic(topics: tuple[str, ...], feed: Sequence[Interest]) -> tuple[str, ...]:
    """Return the topics of a stream, with the topic of session events added if the stream may have messages of a
    feed and lacks this topic."""
    own = [Interest.parse(each) for each in topics]
    is_fed = any(may_meet(one, other) for one in own for other in feed if not other.negative)
    return (*topics, SESSION_TOPIC) if is_fed and not any(may_meet(each, _SESSIONS) for each in own) else topics


class StreamConfig(Config, frozen=True):
    """A stream, at the root: all messages on these topics, in one order."""

    name: Name
    topics: tuple[str, ...]
    retain: str = "7d"
    """Minimum time that messages are kept, as "90s", "6h" or "7d"; empty: forever."""

    retain_bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Maximum size of the journal; above it, the oldest messages are dropped before that time. 0: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"stream {self.name}"
        if not self.topics:
            raise ConfigurationError("a stream needs topics", where=where)
        for topic in self.topics:
            if Interest.parse(topic).negative:
                raise ConfigurationError(
                    f"{topic!r} is negative", where=where, hint="list only topics that the stream has"
                )
        duration_s(self.retain, where=where)

    @property
    def retain_s(self) -> int:
        return duration_s(self.retain)


class BackoffConfig(Config, frozen=True):
    """Pauses between attempts to find a parent."""

    base_ms: Milliseconds = 50
    factor: Annotated[float, msgspec.Meta(ge=1.0, le=10.0)] = 2.0
    jitter: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    """Random share of each pause, so that many children do not reconnect at the same time."""

    max_ms: Milliseconds = 5_000


class ReactionConfig(Config, frozen=True):
    """An agent's reactions to messages of its parent, and to its loss."""

    parent_lost: tuple[Step, ...] = ("alternate", "sibling", "wait")
    """When the link to the parent is lost: these steps in order, repeated with pauses."""

    parent_unrooted: tuple[Step, ...] = ("wait",)
    """When the parent reports that it has lost its own parent."""

    move: Literal["obey", "ignore"] = "obey"
    """When the parent asks this agent to move to another one."""

    send_back: Literal["obey", "ignore"] = "obey"
    """When the other agent asks it to return."""

    root_lost: Literal["promote", "wait"] = "wait"
    """For a standby: become the root when the root was gone for promote_after_ms, or wait for an operator."""

    promote_after_ms: Milliseconds = 2_000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parent_lost or not self.parent_unrooted:
            raise ConfigurationError("a reaction has at least one step", where="on", hint='["wait"] does nothing')


class TreeConfig(Config, frozen=True):
    """Configuration of an agent's core; AgentConfig has the rest of a node."""

    name: Name
    tree: Name = "tree"
    """Name of the tree, equal for all its agents."""

    role: AgentRole = "agent"
    parent: str = ""
    """host:port of the parent; for a standby, of the root. A root has none."""

    alternates: tuple[str, ...] = ()
    """host:port of other possible parents, in this order."""

    peers: tuple[str, ...] = ()
    """Neighbours with additional links, for redundancy: new packets are exchanged in both directions."""

    standby: str = ""
    """At the root: host:port of the standby, which the root announces to its children."""

    agents: tuple[Name, ...] | dict[Name, Name] = ()
    """Names that may be agents, standbys or peers below this agent; empty: every name. If tokens are required, each
    of them presents the token of the client with its name, or of the client that a table assigns: { leaf = "nodes"
    }."""

    on: ReactionConfig = ReactionConfig()
    backoff: BackoffConfig = BackoffConfig()

    streams: tuple[StreamConfig, ...] = ()
    """At the root and its standby."""

    create_on_use: bool = False
    """At the root: True if publishing on a topic without a stream creates one, named after the topic's first level."""

    streams_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1_024
    persist: Literal["written", "synced"] = "written"
    """At the root: persistence before a message is distributed and acknowledged: written to the page cache, or
    synced to the disk."""

    replicate: Literal["none", "asynchronous", "synchronous"] = "none"
    """At the root: whether a standby must have a message before it is distributed and acknowledged (synchronous)."""

    replicate_wait_ms: Milliseconds = 1_000
    """Time limit for a synchronous standby; then the root continues without it."""

    balance_high: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    """Load in percent above which children are moved to a sibling temporarily; 0: never."""

    balance_low: Annotated[int, msgspec.Meta(ge=0, le=100)] = 50
    """Load below which a sibling accepts children of others, and its own children return."""

    children_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 4_096
    legs_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    """Maximum number of legs (subscriptions) of one child; also to the parent, above which whole streams are
    requested."""

    publishers_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Maximum number of publishers whose last numbers the root remembers."""

    history_bytes: Annotated[int, msgspec.Meta(ge=MIB, le=2**40)] = 64 * MIB
    """Size of the newest messages in memory, for children that connect or return."""

    queue_packets: Annotated[int, msgspec.Meta(ge=16, le=2**24)] = 65_536
    """Maximum number of messages that wait for one child."""

    fetch_bytes_max: Annotated[int, msgspec.Meta(ge=65_536, le=2 * MIB)] = MIB
    """Maximum size of one portion of history."""

    heartbeat_ms: Milliseconds = 500
    """Interval at which children get the positions of the streams."""

    silence_ms: Milliseconds = 5_000
    """Silence after which a parent counts as dead."""

    @property
    def bearers(self) -> dict[str, str]:
        """By the name of an agent: the client whose token it presents."""
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
            raise ConfigurationError("two streams have the same name", where=where)
        if self.silence_ms < 2 * self.heartbeat_ms:
            raise ConfigurationError("silence_ms must be at least twice heartbeat_ms", where=where)


class AgentAccess(ControlAccess, frozen=True):
    """The listener for children."""

    port: AnyPort = PORT_DEFAULT
    advertised: str = ""
    """host:port to announce; empty: host and port."""


class AgentConfig(TreeConfig, frozen=True, kw_only=True):
    """One agent: these keys, and those of its core (TreeConfig)."""

    control: AgentAccess = AgentAccess()
    ca_file: str = ""
    secret_file: str = ""
    """TLS and a secret for parents and peers on other hosts."""

    subscribe: tuple[str, ...] = ()
    """At the root: topics of the plant's feeds to publish in the tree, through the administration server. The client
    needs the role `filter` and grants for these topics."""

    models: tuple[str, ...] = ()
    """Documents of message models that conditions may refer to, in addition to the shipped ones."""

    operators: tuple[Name, ...] = ()
    """Who may give orders (`penstock agent move` and others): clients of the administration server, or names without
    one. Empty: every party that can connect, if no tokens are required."""

    admin: AdminAccess = AdminAccess()
    """The administration servers whose tokens grant subscribers and publishers their rights; without them, every
    party has all rights."""

    accounts: AccountsConfig = AccountsConfig()
    state_directory: str = ""
    """Directory of the root's streams, and of every agent's token state. A root needs one."""

    journal: JournalConfig = JournalConfig(segment_bytes=16 * MIB, linger_us=10_000)
    """Journals of the root's streams; each stream has its own retention. Lingering delays no message, because the
    tail keeps it meanwhile; with persist = "synced", records are written at once."""

    tail_bytes: Annotated[int, msgspec.Meta(ge=4 * 65_536, le=2**32)] = 32 * MIB
    """Size of the file with the root's newest messages, which survives the process; preallocated at the start."""

    sends_bytes_max: Annotated[int, msgspec.Meta(ge=65_536, le=2**30)] = 1024 * 1024
    """Bytes in a child's socket buffers of this process, above which its messages wait in the queue."""

    metrics_host: str = "127.0.0.1"
    metrics_port: AnyPort = 0
    metrics_access: PageAccessConfig = PageAccessConfig()
    cpu: Annotated[int, msgspec.Meta(ge=-1, le=4_095)] = -1
    """The processor that the data thread is bound to; -1: none."""

    def with_session_topics(self) -> "AgentConfig":
        """Return the configuration with the topic of session events in all streams with messages of the plant's
        feeds."""
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
            raise ConfigurationError(f"a {self.role} stores its streams", where=where, hint="set state_directory")
        if self.subscribe and self.role == "agent":
            raise ConfigurationError("only the root can subscribe to feeds", where=where)
        if self.subscribe and not self.admin.url:
            raise ConfigurationError("subscribe needs an administration server", where=where)
