"""The endpoints of a router by name, and the matching of messages."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec
import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.assured.config import EndpointConfig, RouterConfig, Treatment, Want
from penstock.assured.core.router._messages import delete_endpoint
from penstock.assured.core.router._parts import MessageParts
from penstock.assured.core.router._records import ENDPOINT_DELETED, ENDPOINT_HEAD_SIZE, RECORD_ENDPOINT
from penstock.assured.core.router._tables import Tables
from penstock.base.clock import NS_PER_MS
from penstock.base.decoding import DECODE_ERRORS
from penstock.base.errors import (
    ConfigurationError,
    FilterExpressionError,
    JournalCorruptError,
    LimitError,
    NotFoundError,
    PenstockError,
)
from penstock.model import MessageModel
from penstock.topics._table import TableKernel
from penstock.topics.modelcondition import ModelCondition
from penstock.topics.predicate import Predicate
from penstock.topics.table import InterestTable

Models: TypeAlias = Mapping[int, MessageModel]
"""By id."""
Offsets = NDArray[numpy.uint64]
Subscribers = NDArray[numpy.uint32]

NUMBER_MAX = 16_777_216
"""Maximum endpoint number. Numbers are not reused, because the log may still refer to a deleted endpoint."""

EVERY_ID = 2**64 - 1

TREATMENTS: dict[Treatment, int] = {"none": 0, "asynchronous": 1, "synchronous": 2}

ROW_DTYPE = numpy.dtype([("model_id", "u2"), ("model_version", "u2"), ("payload_offset", "u4"), ("payload_size", "u4")])


class ReplayState(msgspec.Struct):
    """Progress of filling an endpoint that begins in the past (REPL-13)."""

    message_id: int
    time_ns: int
    """The start, given by the one that is not 0."""

    live_from: int
    """The first id that was queued directly."""

    through: int = 0
    """Messages up to this id need not be searched again."""

    phase: Literal["moved", "logged"] = "moved"
    """The messages to search for; replay.py explains the phases."""


class Definition(msgspec.Struct):
    """An endpoint, in the form of its JSON record in the log."""

    config: EndpointConfig
    replay: ReplayState | None = None
    own_through: int = 0
    """In a pair: messages up to this id may be at this router only. The other router lacks or lacked this endpoint
    or its copies, and did not get everything since."""


class Endpoint(msgspec.Struct):
    number: int
    definition: Definition
    sequence: int = 0
    """Of the newest record that defines it."""

    record_size: int = 0
    subscribers: tuple[int, ...] = ()

    @property
    def config(self) -> EndpointConfig:
        return self.definition.config

    @property
    def name(self) -> str:
        return self.definition.config.name


def counts_of(offsets: Offsets) -> NDArray[numpy.int64]:
    """The differences between consecutive offsets."""
    counts: NDArray[numpy.int64] = (offsets[1:] - offsets[:-1]).astype(numpy.int64)
    return counts


class Matcher:
    """Matches messages by topic and content. A subscriber is one want of one endpoint."""

    def __init__(self, models: Models, seed: bytes, wants_max: int) -> None:
        self.owners = numpy.zeros(64, numpy.uint32)
        """By subscriber: the number of its endpoint."""
        self._models = models
        self._wants_max = wants_max
        self._table = InterestTable(seed=seed)
        self._conditions: dict[int, ModelCondition] = {}
        self._free: list[int] = []
        self._end = 0

    def add_all(self, endpoint: int, wants: Iterable[Want]) -> tuple[int, ...]:
        """Add all wants or none."""
        added: list[int] = []
        try:
            added.extend(self._add(endpoint, want) for want in wants)
        except BaseException:
            for subscriber in added:
                self.remove(subscriber)
            raise
        return tuple(added)

    def _add(self, endpoint: int, want: Want) -> int:
        if not self._free:
            if self._end >= self._wants_max:
                raise LimitError(f"there are {self._end} wants already", hint="raise wants_max")
            if self._end == len(self.owners):
                self.owners = numpy.concatenate([self.owners, numpy.zeros_like(self.owners)])
            self._free.append(self._end)
            self._end += 1
        subscriber = self._free[-1]
        try:
            for topic in want.topics:
                self._table.add(topic, subscriber)
        except BaseException:
            self._table.remove_subscriber(subscriber)
            raise
        self._free.pop()
        self.owners[subscriber] = endpoint
        if want.where:
            self._conditions[subscriber] = ModelCondition(want.where, lambda model_id, _: self._models.get(model_id))
        return subscriber

    @property
    def topics(self) -> TableKernel:
        """The table that decides while `is_plain`."""
        return self._table.kernel

    @property
    def is_plain(self) -> bool:
        """True if the kernel alone matches messages."""
        return not self._conditions and not self._table.kernel.regex_count

    def can_hold(self, where: str) -> bool:
        """True if a known model has all fields of a condition: messages of other models never match."""
        return not where or not self._models or any(_fits(where, model) for model in self._models.values())

    def remove(self, subscriber: int) -> None:
        self._table.remove_subscriber(subscriber)
        self._conditions.pop(subscriber, None)
        self.owners[subscriber] = 0
        self._free.append(subscriber)

    def match(
        self,
        data: Buffer,
        topic_offsets: NDArray[numpy.uint32],
        topic_sizes: NDArray[numpy.uint16],
        rows: Callable[[], NDArray[numpy.void]],
    ) -> tuple[Offsets, Subscribers]:
        """The subscribers of message i are found[1][found[0][i] : found[0][i + 1]]; `rows` returns the positions of
        payloads, if needed."""
        offsets, subscribers = self._table.match_batch(memoryview(data), topic_offsets, topic_sizes)
        if not self._conditions:
            return offsets, subscribers
        return self._judge(data, rows(), offsets, subscribers)

    def match_messages(self, messages: MessageParts) -> tuple[Offsets, Subscribers]:
        return self.match(messages.data, messages.topic_offsets, messages.topic_sizes, lambda: _contents(messages))

    def _judge(
        self, data: Buffer, rows: NDArray[numpy.void], offsets: Offsets, subscribers: Subscribers
    ) -> tuple[Offsets, Subscribers]:
        """Remove subscribers whose condition the payload does not match."""
        messages = numpy.repeat(numpy.arange(len(rows)), counts_of(offsets))
        is_kept = numpy.ones(len(subscribers), numpy.bool_)
        for subscriber in numpy.unique(subscribers).tolist():
            condition = self._conditions.get(subscriber)
            if condition is not None:
                which = numpy.flatnonzero(subscribers == subscriber)
                is_kept[which] = condition.select_at(data, rows[messages[which]])
        counts = numpy.bincount(messages[is_kept], minlength=len(rows))
        kept = numpy.zeros(len(rows) + 1, numpy.uint64)
        numpy.cumsum(counts, out=kept[1:])
        return kept, subscribers[is_kept]


def _fits(where: str, model: MessageModel) -> bool:
    try:
        Predicate.compile(where, model)
    except FilterExpressionError:
        return False
    return True


def _contents(messages: MessageParts) -> NDArray[numpy.void]:
    rows = numpy.empty(len(messages), ROW_DTYPE)
    rows["model_id"], rows["model_version"] = messages.model_ids, messages.model_versions
    rows["payload_offset"], rows["payload_size"] = messages.payload_offsets, messages.payload_sizes
    return rows


class Endpoints:
    def __init__(self, config: RouterConfig, tables: Tables, models: Models, seed: bytes) -> None:
        self.matcher = Matcher(models, seed, config.wants_max)
        self.changes = 0
        """Counter of logged changes: created, changed or deleted endpoints."""
        self._config = config
        self._tables = tables
        self._by_name: dict[str, Endpoint] = {}
        self._by_number: dict[int, Endpoint] = {}
        self._number_highest = 0
        self._log_size = 0
        self._aged: set[int] = set()
        """Endpoints with a maximum age."""

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Endpoint | None:
        return self._by_name.get(name)

    def by_number(self, number: int) -> Endpoint | None:
        return self._by_number.get(number)

    @property
    def log_size(self) -> int:
        """Size of the records that define all endpoints."""
        return self._log_size

    @property
    def number_highest(self) -> int:
        """The highest number ever used."""
        return max(self._number_highest, self._tables.endpoint_highest)

    @property
    def has_ages(self) -> bool:
        return bool(self._aged)

    def put(self, definition: Definition, number: int = 0) -> Endpoint:
        """Create an endpoint, or change the one of this name. The caller logs it."""
        config = definition.config
        known = self._by_name.get(config.name)
        if known is None and len(self) >= self._config.endpoints_max:
            raise LimitError(f"there are {len(self)} endpoints already", hint="raise endpoints_max")
        target = self._by_name.get(config.dead_to)
        if config.dead_to and target is None and not number:
            raise NotFoundError(f"unknown endpoint {config.dead_to!r} in dead_to of {config.name!r}")
        self._refuse_circle(config)
        number = known.number if known is not None else number or self.number_highest + 1
        if number > NUMBER_MAX:
            raise LimitError(
                f"all {NUMBER_MAX:,} endpoint numbers are used", hint="begin with an empty state directory"
            )
        wants = (*config.wants, Want(topics=(f"queue.{config.name}",)))
        subscribers = self.matcher.add_all(number, wants)
        if known is not None:
            for subscriber in known.subscribers:
                self.matcher.remove(subscriber)
        endpoint = known or Endpoint(number, definition)
        endpoint.definition = definition
        endpoint.subscribers = subscribers
        self._number_highest = max(self._number_highest, number)
        self._by_name[config.name] = self._by_number[number] = endpoint
        self.apply(endpoint)
        for other in self:  # in a log, dead letters may go to an endpoint that is defined later
            if other.config.dead_to == config.name:
                self.apply(other)
        return endpoint

    def _refuse_circle(self, config: EndpointConfig) -> None:
        """Refuse a cycle of dead-letter endpoints."""
        target = self._by_name.get(config.dead_to)
        while target is not None:
            if target.name == config.name:
                raise ConfigurationError(
                    "its dead letters return to it", where=f"endpoint {config.name}", hint="change dead_to"
                )
            target = self._by_name.get(target.config.dead_to)

    def apply(self, endpoint: Endpoint) -> None:
        """Apply the definition to the tables."""
        config, replay = endpoint.config, endpoint.definition.replay
        (self._aged.add if config.age_ms_max else self._aged.discard)(endpoint.number)
        target = self._by_name.get(config.dead_to)
        self._tables.set_endpoint(
            endpoint.number,
            is_exclusive=config.consumers == "exclusive",
            gives_up_when_full=config.when_full == "dead",
            treatment=TREATMENTS[config.replication],
            dead_to=target.number if target is not None else 0,
            deliveries_max=config.deliveries_max,
            messages_max=config.messages_max,
            bytes_max=config.bytes_max,
            age_ns_max=config.age_ms_max * NS_PER_MS,
            live_from=0 if replay is None else 1 if replay.phase == "moved" else replay.live_from,
            own_through=endpoint.definition.own_through,
        )

    def remove(self, endpoint: Endpoint) -> None:
        """Remove an endpoint with its messages. It must have no flows, and no other endpoint may dead-letter to it."""
        for subscriber in endpoint.subscribers:
            self.matcher.remove(subscriber)
        delete_endpoint(self._tables, endpoint.number)
        del self._by_name[endpoint.name], self._by_number[endpoint.number]
        self._aged.discard(endpoint.number)
        self._log_size -= endpoint.record_size

    def is_copied(self, config: EndpointConfig) -> bool:
        """True if messages of the endpoint are copied to the standby router."""
        return self._config.replicate_by != "endpoint" or config.replication != "none"

    def own_through_as(self, config: EndpointConfig) -> int:
        """Return the highest message id that only this router may have, if the endpoint gets this configuration."""
        known = self._by_name.get(config.name)
        if known is None:
            return 0
        has_new_copies = self.is_copied(config) and not self.is_copied(known.config)
        if has_new_copies and self._tables.endpoint_numbers(known.number)["messages"]:
            return self._tables.next_id - 1
        return known.definition.own_through

    def set_own_through(self, endpoint: Endpoint, last_id: int) -> None:
        if endpoint.definition.own_through != last_id:
            endpoint.definition.own_through = last_id
            self.apply(endpoint)
            self.log(endpoint)

    def takes_dead_of(self, endpoint: Endpoint) -> list[str]:
        """Names of the endpoints whose dead-letter endpoint this is."""
        return [other.name for other in self if other.config.dead_to == endpoint.name]

    # In the log

    def log(self, endpoint: Endpoint, *, is_deleted: bool = False) -> None:
        self.changes += 1
        text = msgspec.json.encode(endpoint.definition)
        size = ENDPOINT_HEAD_SIZE + (len(text) + 7) // 8 * 8
        record = bytearray(size)
        record[0], record[1] = RECORD_ENDPOINT, ENDPOINT_DELETED if is_deleted else 0
        record[4:8] = size.to_bytes(4, "little")
        record[8:12] = endpoint.number.to_bytes(4, "little")
        record[12:16] = len(text).to_bytes(4, "little")
        record[ENDPOINT_HEAD_SIZE : ENDPOINT_HEAD_SIZE + len(text)] = text
        self._recorded(endpoint, self._tables.log.append(bytes(record), self._tables.wall_ns), size)

    def _recorded(self, endpoint: Endpoint, sequence: int, size: int) -> None:
        self._log_size += size - endpoint.record_size
        endpoint.sequence, endpoint.record_size = sequence, size

    def log_older(self, before: int) -> None:
        """Log definitions again whose newest record is older than this one."""
        for endpoint in self:
            if endpoint.sequence < before:
                self.log(endpoint)

    def recover(self, record: bytes, sequence: int) -> None:
        """Apply an ENDPOINT record."""
        number = int.from_bytes(record[8:12], "little")
        size = int.from_bytes(record[12:16], "little")
        try:
            definition = msgspec.json.decode(record[ENDPOINT_HEAD_SIZE : ENDPOINT_HEAD_SIZE + size], type=Definition)
        except (*DECODE_ERRORS, PenstockError) as error:
            what = f"record {sequence} has an invalid definition of an endpoint: {error}"
            raise JournalCorruptError(what, hint="was it written by a later version?") from None
        known = self._by_number.get(number)
        if record[1] & ENDPOINT_DELETED:
            if known is not None:
                self.remove(known)
            self._number_highest = max(self._number_highest, number)
            return
        endpoint = self.put(definition, number)
        self._recorded(endpoint, sequence, len(record))
