"""What a message router is told: its endpoints, whom it replicates with, and every bound that is kept."""

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
"""Messages of one publisher that may be unacknowledged; so many of its numbers are remembered."""

Milliseconds = Annotated[int, msgspec.Meta(ge=1, le=3_600_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]

Treatment: TypeAlias = Literal["none", "asynchronous", "synchronous"]
"""What a message gets besides the local disk: nothing, a copy at the secondary, a copy before it is acknowledged."""
WhenFull: TypeAlias = Literal["refuse", "dead"]

Role: TypeAlias = Literal["active", "standby"]


class Want(Config, frozen=True):
    """Messages on any of these topics that meet the condition; none is met by all."""

    topics: tuple[str, ...]
    where: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            interests = [Interest.parse(topic) for topic in self.topics]
        except PenstockError as error:
            raise ConfigurationError(str(error), where="wants") from None
        if all(interest.negative for interest in interests):
            raise ConfigurationError("a want has topics, not only what it does not want", where="wants")


class EndpointConfig(Config, frozen=True):
    """A durable queue: what it attracts, who may consume from it, and when it is full."""

    name: Name
    wants: tuple[Want, ...] = ()
    """Empty: nothing comes here but what other endpoints give up (`dead_to`), and what is published to `queue.NAME`."""

    consumers: Literal["shared", "exclusive"] = "shared"
    """Shared: each message goes to one of the flows, in turn. Exclusive: to the first flow; the others stand by."""

    replication: Treatment = "none"
    """Counts where endpoints' attributes decide (RouterConfig.replicate_by)."""

    messages_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 1_000_000
    bytes_max: Annotated[int, msgspec.Meta(ge=1, le=2**44)] = 1024 * MIB
    """Of topics and payloads."""

    age_ms_max: Annotated[int, msgspec.Meta(ge=0, le=2**40)] = 0
    """How old a message may become here, whatever its own time to live says; 0: any age."""

    when_full: WhenFull = "refuse"
    """What would exceed messages_max or bytes_max is refused to its publisher, or goes to `dead_to`."""

    deliveries_max: Annotated[int, msgspec.Meta(ge=0, le=65_535)] = 0
    """Deliveries of one message after which it goes to `dead_to` instead of back to the queue; 0: any number."""

    dead_to: str = "dead"
    """The endpoint for messages that are too old, were delivered too often or are rejected; empty: they are discarded,
    and counted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"endpoint {self.name}"
        if self.dead_to == self.name:
            raise ConfigurationError("dead_to names the endpoint itself", where=where, hint='dead_to = "" discards it')
        if self.when_full == "dead" and not self.dead_to:
            raise ConfigurationError("says when_full = dead, but not dead_to", where=where)


DEAD = EndpointConfig(name="dead", dead_to="", messages_max=100_000)
"""The dead-message queue that there is without being configured."""


class RouterConfig(Config, frozen=True):
    """What the core of a message router needs; RouterNodeConfig has the rest of a node."""

    name: Name
    endpoints: tuple[EndpointConfig, ...] = ()
    """Those that there are from the start; others are created by operators and applications, and outlive restarts."""

    unmatched: Literal["discard", "refuse"] = "discard"
    """A message that no endpoint wants is acknowledged as such, or refused."""

    replicate_by: Literal["endpoint", "publisher", "topic"] = "endpoint"
    """What decides the treatment of a message (REPL-2): the attribute of the endpoints that it goes to, the flag that
    its publisher gave it, or the topics below."""

    synchronous_topics: tuple[str, ...] = ()
    asynchronous_topics: tuple[str, ...] = ()
    """With replicate_by = "topic": what is replicated how; a message on both is synchronous."""

    retain_s: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 0
    """How long the journal keeps messages for replay after they were settled everywhere."""

    message_bytes_max: Annotated[int, msgspec.Meta(ge=1, le=8 * MIB)] = MIB
    """Of a payload."""

    endpoints_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 4_096
    wants_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Of all endpoints together."""

    links_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 4_096
    publishers_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Publishers whose numbers are remembered; beyond that, the one that was away longest is forgotten."""

    flows_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    messages_max: Annotated[int, msgspec.Meta(ge=1, le=2**31)] = 2**26
    """Of all endpoints together, each counted once: beyond that publishers are refused."""

    unsettled_max: Annotated[int, msgspec.Meta(ge=1, le=2**20)] = 65_536
    """Messages that were delivered on one flow and are not settled, whatever its credit says."""

    unsettled_bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=2**31)] = 4 * MIB
    """Their bytes; one message may be on its way in any case."""

    transaction_bytes_max: Annotated[int, msgspec.Meta(ge=KIB, le=8 * MIB)] = 4 * MIB
    transaction_messages_max: Annotated[int, msgspec.Meta(ge=1, le=WINDOW_MAX)] = WINDOW_MAX
    """Messages published, and messages settled, in one transaction."""

    transactions_max: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 1_024
    transaction_ms_max: Milliseconds = 60_000
    """A transaction that was begun and not ended for so long is rolled back."""

    cache_bytes: Annotated[int, msgspec.Meta(ge=64 * KIB, le=2**40)] = 64 * MIB
    """The newest messages in memory; older ones are read from the journal."""

    fetch_messages_max: Annotated[int, msgspec.Meta(ge=1, le=65_536)] = 1_024
    fetch_bytes_max: Annotated[int, msgspec.Meta(ge=64 * KIB, le=64 * MIB)] = MIB
    """What is read from the journal at a time; at least one message."""

    section_bytes: Annotated[int, msgspec.Meta(ge=4 * KIB, le=2**32)] = 16 * MIB
    """The portions in which the journal is cleaned."""

    sweep_ms: Milliseconds = 100
    """How often messages that have become too old are looked for, so many at a time:"""

    sweep_messages: Annotated[int, msgspec.Meta(ge=1, le=2**24)] = 16_384

    def __post_init__(self) -> None:
        super().__post_init__()
        where = f"router {self.name}"
        names = [each.name for each in self.endpoints]
        if len(set(names)) < len(names):
            raise ConfigurationError("two endpoints have one name", where=where)
        if self.replicate_by != "topic" and (self.synchronous_topics or self.asynchronous_topics):
            hint = 'replicate_by = "topic"'
            raise ConfigurationError("topics are replicated, but others decide", where=where, hint=hint)
        if self.cache_bytes < 2 * (self.message_bytes_max + KIB):
            raise ConfigurationError("cache_bytes has no room for two messages", where=where)
        if self.transaction_bytes_max < self.message_bytes_max:
            raise ConfigurationError("a transaction has no room for one message", where=where)
