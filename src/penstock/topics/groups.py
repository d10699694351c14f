"""Which multicast group a topic flows on: a map that publishers and subscribers load from one file.

    groups = GroupMap.load(Path("groups.toml"))
    groups.group_of("md.us.eq.AAPL.quote")              where it is published
    groups.groups_for(["md.us.eq.AAPL.>"])              what a subscriber has to join, and no more

The document is described in docs/reference/protocol/group-map.md.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.base.config import Config, load_toml, parse_toml
from penstock.base.crc32c import crc32c
from penstock.base.errors import ConfigurationError, PenstockError
from penstock.base.ids import Group, format_group, parse_group
from penstock.topics.interest import Interest, InterestKind
from penstock.topics.interest import Literal as LiteralLevel
from penstock.topics.overlap import covers, levels_of, may_meet
from penstock.topics.table import InterestTable
from penstock.topics.topic import check_topic

MAP_SIZE_MAX = 8 * 1024 * 1024
"""Bytes of a document; a planned map names every topic."""

GROUPS_MAX = 4_096
"""What switches carry; a document may set a lower bound."""

TOPICS_REMEMBERED_MAX = 65_536
LOWER_BITS = 23
"""Of a group's address: all that Ethernet sees of it."""

Port = Annotated[int, msgspec.Meta(ge=1, le=65_535)]


class MapRule(Config, frozen=True):
    """Topics that match one of these patterns flow on this group."""

    topics: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    group: str


class MapHash(Config, frozen=True):
    """Other topics are spread over `count` groups that follow each other."""

    first: str
    count: Annotated[int, msgspec.Meta(ge=1, le=GROUPS_MAX)]
    levels: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    """How many of a topic's levels, from the left, say where it goes; 0 means all."""


class MapDocument(Config, frozen=True):
    version: Literal[1]
    port: Port = 7401
    groups_max: Annotated[int, msgspec.Meta(ge=1, le=GROUPS_MAX)] = 1_024
    rules: tuple[MapRule, ...] = ()
    default: str | None = None
    """The group of topics that no rule matches; or `hash` says it."""
    hash: MapHash | None = None


class GroupMap:
    """Rules are tried in their order, then the hash or the default decides; so every topic has a group."""

    def __init__(self, document: MapDocument, *, where: str = "group map") -> None:
        self.document = document
        self.port = document.port
        self._where = where
        if (document.default is None) == (document.hash is None):
            raise ConfigurationError(
                "a map has either a default or a hash, for topics that no rule matches", where=where
            )
        self._rule_groups = [self._group(rule.group, f"rules[{n}].group") for n, rule in enumerate(document.rules)]
        self._rest = self._rest_groups(document)
        self.groups: tuple[Group, ...] = tuple(sorted({*self._rule_groups, *self._rest}))
        """All that the map uses."""
        self._check_groups()
        self._patterns: list[tuple[int, Interest]] = []  # of rules, with their numbers; exact topics are apart
        self._topics: list[str] = []
        self._table = InterestTable()
        for number, rule in enumerate(document.rules):
            for text in rule.topics:
                self._add(number, text)
        self._known: dict[str, Group] = {}

    @staticmethod
    def load(path: Path) -> "GroupMap":
        return GroupMap(load_toml(path, MapDocument, size_max=MAP_SIZE_MAX), where=str(path))

    @staticmethod
    def parse(text: str, *, where: str = "group map") -> "GroupMap":
        return GroupMap(parse_toml(text, MapDocument, where=where), where=where)

    def save(self, path: Path) -> None:
        """Write the document; whoever reads it meanwhile sees the old one or the new one."""
        fresh = path.with_name(f".{path.name}.new")
        try:
            fresh.write_text(self.to_toml(), encoding="utf-8")
            fresh.replace(path)
        except OSError as error:
            raise ConfigurationError(f"cannot be written: {error.strerror}", where=str(path)) from None

    def to_toml(self) -> str:
        document = self.document
        lines = [f"version = {document.version}", f"port = {document.port}", f"groups_max = {document.groups_max}"]
        if document.default is not None:
            lines.append(f"default = {_quoted(document.default)}")
        if document.hash is not None:
            spread = document.hash
            lines += ["", "[hash]", f"first = {_quoted(spread.first)}"]
            lines += [f"count = {spread.count}", f"levels = {spread.levels}"]
        for rule in document.rules:
            lines += ["", "[[rules]]", f"group = {_quoted(rule.group)}", "topics = ["]
            lines += [*(f"    {_quoted(topic)}," for topic in rule.topics), "]"]
        return "\n".join(lines) + "\n"

    def group_of(self, topic: str) -> Group:
        """The group a topic is published on."""
        group = self._known.get(topic)
        if group is None:
            matching = self._table.match(topic)  # refuses what is no topic
            group = self._rule_groups[matching[0]] if matching else self._rest_group(topic)
            if len(self._known) >= TOPICS_REMEMBERED_MAX:
                self._known.clear()
            self._known[topic] = group
        return group

    def groups_of_rows(
        self, topic_data: bytes | NDArray[numpy.uint8], rows: NDArray[numpy.void]
    ) -> NDArray[numpy.uint32]:
        """The group of each message of a batch; its rows say where in `topic_data` their topics are."""
        places = rows["topic_offset"].astype(numpy.uint64) << numpy.uint64(16) | rows["topic_size"]
        distinct, which = numpy.unique(places, return_inverse=True)
        view = memoryview(topic_data)  # type: ignore[arg-type]  # an array is a buffer; numpy does not say so
        found = []
        for place in distinct.tolist():
            offset, size = place >> 16, place & 0xFFFF
            found.append(self.group_of(str(view[offset : offset + size], "utf-8")))
        return numpy.array(found, numpy.uint32)[which]

    def groups_for(self, interests: Sequence[str | Interest]) -> list[Group]:
        """The groups on which topics can flow that a subscriber with these interests wants, in order.

        A group is left out only if no such topic can be there. Tags are on messages of any topic: one of them asks for
        every group.
        """
        parsed = [Interest.parse(each) if isinstance(each, str) else each for each in interests]
        wanted = [each for each in parsed if not each.negative]
        refused = [each for each in parsed if each.negative]
        if any(each.kind is InterestKind.TAG for each in wanted):
            return list(self.groups)
        found = self._groups_of_wanted_topics(parsed)
        for interest in wanted:
            if not any(covers(each, interest) for each in refused):
                found |= self._groups_met(interest)
        return sorted(found)

    def _groups_of_wanted_topics(self, interests: Iterable[Interest]) -> set[Group]:
        """Of topics that rules name one by one: there it is known exactly."""
        subscriber = InterestTable()
        for interest in interests:
            subscriber.add(interest, 0)
        if not self._topics:
            return set()
        named = self._named_topics
        offsets, _ = subscriber.match_batch(named.data, named.offsets, named.sizes)
        return {Group(group) for group in numpy.unique(named.groups[numpy.diff(offsets) > 0]).tolist()}

    @functools.cached_property
    def _named_topics(self) -> "_NamedTopics":
        encoded = [topic.encode() for topic in self._topics]
        sizes = numpy.array([len(each) for each in encoded], numpy.uint16)
        offsets = numpy.cumsum([0, *sizes[:-1].tolist()], dtype=numpy.uint32)
        groups = numpy.array([self.group_of(topic) for topic in self._topics], numpy.uint32)
        return _NamedTopics(b"".join(encoded), offsets, sizes, groups)

    def _groups_met(self, interest: Interest) -> set[Group]:
        """By the patterns of rules and by what comes after the rules."""
        if interest.kind is InterestKind.TOPIC:
            return {self.group_of(interest.subject)}
        found: set[Group] = set()
        for number, pattern in self._patterns:
            if may_meet(pattern, interest):
                found.add(self._rule_groups[number])
            if covers(pattern, interest):
                return found  # nothing of it is left for later rules
        hashed = self.document.hash
        if hashed is None or not hashed.levels or interest.kind is InterestKind.REGEX:
            return found | set(self._rest)
        levels = levels_of(interest)[: hashed.levels]
        if len(levels) == hashed.levels and all(isinstance(each, LiteralLevel) for each in levels):
            return found | {self._rest_group(".".join(map(str, levels)))}
        return found | set(self._rest)

    def _rest_group(self, topic: str) -> Group:
        hashed = self.document.hash
        if hashed is None:
            return self._rest[0]
        key = ".".join(topic.split(".")[: hashed.levels]) if hashed.levels else topic
        return self._rest[crc32c(key.encode()) % hashed.count]

    def _rest_groups(self, document: MapDocument) -> list[Group]:
        if document.hash is None:
            return [self._group(document.default or "", "default")]
        first = self._group(document.hash.first, "hash.first")
        self._group(format_group(min(first + document.hash.count - 1, 2**32 - 1)), "hash.count: the last group")
        return [Group(first + step) for step in range(document.hash.count)]

    def _group(self, text: str, key: str) -> Group:
        try:
            return parse_group(text)
        except ConfigurationError as error:
            raise ConfigurationError(error.what, where=f"{self._where}: {key}", hint=error.hint) from None

    def _check_groups(self) -> None:
        if len(self.groups) > self.document.groups_max:
            raise ConfigurationError(
                f"the map has {len(self.groups)} groups, at most {self.document.groups_max} are allowed",
                where=self._where,
                hint="use fewer groups, or raise groups_max if the switches carry them",
            )
        seen: dict[int, Group] = {}
        for group in self.groups:
            other = seen.setdefault(group & (1 << LOWER_BITS) - 1, group)
            if other != group:
                raise ConfigurationError(
                    f"the groups {format_group(other)} and {format_group(group)} have the same lower 23 bits: "
                    "on an Ethernet a host that joins one gets both",
                    where=self._where,
                    hint="choose groups that differ in their last three numbers",
                )

    def _add(self, number: int, text: str) -> None:
        where = f"{self._where}: rules[{number}].topics"
        try:
            interest = Interest.parse(text)
            if interest.negative or interest.kind is InterestKind.TAG:
                raise ConfigurationError(
                    f"{text!r} cannot say where a topic flows", hint="write a topic, a pattern or a regular expression"
                )
            self._table.add(interest, number)
        except PenstockError as error:
            raise ConfigurationError(str(error), where=where) from None
        if interest.kind is InterestKind.TOPIC:
            check_topic(interest.subject)
            self._topics.append(interest.subject)
        else:
            self._patterns.append((number, interest))


class _NamedTopics(NamedTuple):
    """The topics that rules name one by one, as the table matches many at once."""

    data: bytes
    offsets: NDArray[numpy.uint32]
    sizes: NDArray[numpy.uint16]
    groups: NDArray[numpy.uint32]


def map_of(rules: Mapping[str, Sequence[str]], *, default: str, port: int, groups_max: int) -> GroupMap:
    """A map that names topics one by one: group to topics."""
    made = tuple(MapRule(topics=tuple(topics), group=group) for group, topics in rules.items() if topics)
    return GroupMap(MapDocument(version=1, port=port, groups_max=groups_max, rules=made, default=default))


def _quoted(text: str) -> str:
    """A TOML string: JSON's is one, but for DEL."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
