"""Configuration of a message router: endpoints, replication and limits."""

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.base.config import Config
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.net.core.control import Name
from penstock.topics import Interest

KIB = 1024
MIB = 1024 * KIB
PRIORITY_MAX = 9
PRIORITY_DEFAULT = 4
WINDOW_MAX = 4_096
"""Maximum number of unacknowledged messages of one publisher, and size of its window of remembered numbers."""

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]

Treatment: TypeAlias = Literal["none", "asynchronous", "synchronous"]
"""Replication of a message: none, a copy at the standby, or a copy before the message is acknowledged."""
WhenFull: TypeAlias = Literal["refuse", "dead"]

Role: TypeAlias = Literal["active", "standby"]


class Want(Config, frozen=True):
    """Messages on any of these topics that match the condition; without a condition, all of them match."""

    topics: tuple[str, ...]
    where: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            interests = [Interest.parse(topic) for topic in self.topics]
        except PenstockError as error:
            raise ConfigurationError(str(error), where="wants") from None
        if all(interest.negative for interest in interests):
            raise ConfigurationError("a want needs at least one topic without `!`", where="wants")


class EndpointConfig(Config, frozen=True):
    """A durable queue: its interests, its consumers, and its limits."""

    name: Name
    wants: tuple[Want, ...] = ()
    """Empty: the endpoint only gets dead letters of other endpoints (`dead_to`), and messages published to
    `queue.NAME`."""

    consumers: Literal["shared", "exclusive"] = "shared"
    """Shared: messages are distributed among the flows. Exclusive: the first flow gets all messages; the others
    wait."""

    replication: Treatment = "none"
    """Used if replication is decided by endpoints (RouterConfig.replicate_by)."""

    messages_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1_000_000
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=2**44)] = 1024 * MIB
    """Maximum size of topics and payloads."""

    age_ms_max: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0
    """Maximum age of messages here, in addition to their own time to live; 0: unlimited."""

    when_full: WhenFull = "refuse"
    """Handling of messages above messages_max or bytes_max: refused, or moved to `dead_to`."""

    deliveries_max: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """Number of deliveries after which a message goes to `dead_to` instead of back to the queue; 0: unlimited."""

    dead_to: str = "dead"
    """The endpoint for messages that are too old, delivered too often or rejected; empty: they are discarded and
    counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"endpoint {self.name}"
        if self.dead_to == self.name:
            hint = 'dead_to = "" discards dead letters'
            raise ConfigurationError("dead_to names the endpoint itself", where=where, hint=hint)
        if self.when_full == "dead" and not self.dead_to:
            raise ConfigurationError('when_full = "dead" requires dead_to', where=where)


DEAD = EndpointConfig(name="dead", dead_to="", messages_max=100_000)
"""The default dead-letter endpoint."""


class RouterConfig(Config, frozen=True):
    """Configuration of a router's core; RouterNodeConfig has the rest of a node."""

    name: Name
    endpoints: tuple[EndpointConfig, ...] = ()
    """The initial endpoints. Operators and applications can create others, which survive restarts."""

    unmatched: Literal["discard", "refuse"] = "discard"
    """Messages that match no endpoint are acknowledged as unmatched, or refused."""

    replicate_by: Literal["endpoint", "publisher", "topic"] = "endpoint"
    """The source of a message's replication (REPL-2): the attribute of its endpoints, the flag of its publisher, or
    the topics below."""

    synchronous_topics: tuple[str, ...] = ()
    asynchronous_topics: tuple[str, ...] = ()
    """With replicate_by = "topic": the topics of each kind; a message that matches both is synchronous."""

    retain_s: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """Time that settled messages stay in the journal for replay."""

    message_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=8 * MIB)] = MIB
    """Maximum size of a payload."""

    endpoints_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 4_096
    wants_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Maximum number of wants of all endpoints."""

    links_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 4_096
    publishers_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Maximum number of publishers whose numbers are remembered; above it, the one that has been away longest is
    forgotten."""

    flows_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    messages_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 2**26
    """Maximum number of messages of all endpoints, each counted once; above it, publishers are refused."""

    unsettled_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Maximum number of unsettled deliveries of one flow, whatever its credit."""

    unsettled_bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=2**31)] = 4 * MIB
    """Maximum size of these deliveries; one message is allowed in any case."""

    transaction_bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=8 * MIB)] = 4 * MIB
    transaction_messages_max: Annotated[int, msgspec.Meta(ge=1, le=WINDOW_MAX)] = WINDOW_MAX
    """Maximum number of published, and of settled, messages in one transaction."""

    transactions_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    transaction_ms_max: Milliseconds = 60_000
    """A transaction without an end for this time is rolled back."""

    cache_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB, le=2**40)] = 64 * MIB
    """Size of the cache of the newest messages; older ones are read from the journal."""

    fetch_messages_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1_024
    fetch_bytes_max: Annotated[int, msgspec.Meta(ge=64 * KIB, le=64 * MIB)] = MIB
    """Maximum size of one read from the journal; at least one message."""

    section_bytes: Annotated[int, msgspec.Meta(ge=4 * KIB, le=2**32)] = 16 * MIB
    """Size of the sections in which the journal is cleaned."""

    sweep_ms: Milliseconds = 100
    """Interval of checks for expired messages, in portions of:"""

    sweep_messages: Annotated[int, msgspec.Meta(ge=1, le=2**24)] = 16_384

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"router {self.name}"
        names = [each.name for each in self.endpoints]
        if len(set(names)) < len(names):
            raise ConfigurationError("two endpoints have the same name", where=where)
        if self.replicate_by != "topic" and (self.synchronous_topics or self.asynchronous_topics):
            hint = 'set replicate_by = "topic"'
            raise ConfigurationError("topics of a replication have no effect", where=where, hint=hint)
        if self.cache_bytes < 2 * (self.message_bytes_max + KIB):
            raise ConfigurationError("cache_bytes is too small for two messages of message_bytes_max", where=where)
        if self.transaction_bytes_max < self.message_bytes_max:
            raise ConfigurationError("transaction_bytes_max is below message_bytes_max", where=where)
