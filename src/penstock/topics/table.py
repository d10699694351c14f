"""The interest table, which finds the subscribers of a topic."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
import numpy
import numpy.typing as npt

from penstock.base import Config
from penstock.base.clock import random_bytes
from penstock.base.errors import LimitError, LocalProtocolError, TopicError
from penstock.topics._store import NEGATIVE, SUBSCRIBER_MAX, NodeKind
from penstock.topics._table import TableKernel
from penstock.topics.interest import AnyLevel, Interest, InterestKind, Level, Literal, NumericRange, Prefix
from penstock.topics.ranges import blocks
from penstock.topics.regexes import RegexInterests
from penstock.topics.topic import check_levels, check_topic, shown

SEED_SIZE = 16

_KEY_KINDS = {InterestKind.TOPIC: NodeKind.NODE_TOPIC, InterestKind.TAG: NodeKind.NODE_TAG}

Positive = Annotated[int, msgspec.Meta(ge=1)]
Step = tuple[int, bytes]
Subscribers = npt.NDArray[numpy.uint32]
Offsets = npt.NDArray[numpy.uint64]


class TableLimits(Config, frozen=True):
    """Limits of a table."""

    interests_max: Positive = 16_000_000
    regexes_max: Positive = 1_000
    """Maximum number of distinct regular expressions."""
    regex_group_memory_bytes_max: Positive = 8 * 1024 * 1024
    """Memory limit of RE2 for each group of up to 64 expressions."""
    range_blocks_max: Positive = 1_024
    """Maximum number of blocks for the numeric ranges of one interest; several ranges multiply."""


class InterestTable:
    """Subscribers and their interests; `match` finds the subscribers of a message.

    A subscriber receives a message when at least one of its positive interests matches and none of its negative ones.
    Subscribers are small numbers chosen by the caller, ideally dense from 0, at most SUBSCRIBER_MAX. One thread may add
    and remove interests while others match: each topic is matched against the table's state at some moment of the call.
    `seed` (16 bytes) makes the layout unpredictable to senders of topics; pass it only to reproduce a run.
    """

    def __init__(self, limits: TableLimits | None = None, *, seed: bytes | None = None) -> None:
        self.limits = limits or TableLimits()
        self._kernel = TableKernel(random_bytes(SEED_SIZE) if seed is None else seed)
        self._regexes = RegexInterests(self.limits.regexes_max, self.limits.regex_group_memory_bytes_max)

    @property
    def kernel(self) -> TableKernel:
        """The compiled part, for compiled code. It does not include `regex_codes`, but tells whether they are
        needed.
        """
        return self._kernel

    def __len__(self) -> int:
        """Number of interests, counted once per subscriber."""
        return self._kernel.interest_count + len(self._regexes)

    @property
    def memory_bytes(self) -> int:
        """Memory of the compiled table in bytes; the limits bound the memory of regular expressions."""
        return self._kernel.memory_bytes

    @property
    def lookup_count(self) -> int:
        """Number of lookups of all matches in the compiled table: a measure of cost that is independent of time."""
        return self._kernel.lookup_count

    @property
    def malformed_count(self) -> int:
        """Number of malformed topics in batches so far, which matched nothing."""
        return self._kernel.malformed_count

    def add(self, interest: str | Interest, subscriber: int) -> bool:
        """Add an interest; return whether it is new for the subscriber."""
        parsed = _parsed(interest)
        code = _code(subscriber, parsed.negative)
        if len(self) >= self.limits.interests_max:
            raise LimitError(f"the table has reached its limit of {len(self)} interests", hint="raise interests_max")
        if parsed.kind is InterestKind.REGEX:
            self._kernel.reserve_subscriber(code)
            return self._regexes_changed(self._regexes.add(parsed.subject, code))
        if parsed.kind is not InterestKind.PATTERN:
            return self._kernel.add_key(_KEY_KINDS[parsed.kind], parsed.subject.encode(), code)
        if not parsed.has_ranges:
            return self._kernel.add_path(_paths(parsed)[0], code)
        return self._add_ranged(parsed, code)

    def add_many(self, interests: Iterable[str | Interest], subscribers: Sequence[int] | Subscribers) -> int:
        """Add interests[i] for subscribers[i] and return how many were new. After an error, those before the bad one
        are added.
        """
        texts = list(interests)
        codes = _codes(subscribers)
        if len(texts) != len(codes):
            raise LocalProtocolError(f"{len(texts)} interests were given for {len(codes)} subscribers")
        position = added = 0
        while position < len(texts):
            room = self.limits.interests_max - len(self._regexes)
            position, new = self._kernel.add_topics(texts, codes, position, room)
            added += new
            if position < len(texts):
                added += self.add(texts[position], int(codes[position]))
                position += 1
        return added

    def remove(self, interest: str | Interest, subscriber: int) -> bool:
        """Remove an interest; return whether the subscriber had it."""
        parsed = _parsed(interest)
        code = _code(subscriber, parsed.negative)
        if parsed.kind is InterestKind.REGEX:
            return self._regexes_changed(self._regexes.remove(parsed.subject, code))
        if parsed.kind is not InterestKind.PATTERN:
            return self._kernel.remove_key(_KEY_KINDS[parsed.kind], parsed.subject.encode(), code)
        if not parsed.has_ranges:
            return self._kernel.remove_path(_paths(parsed)[0], code)
        return self._remove_ranged(parsed, code)

    def remove_subscriber(self, subscriber: int) -> int:
        """Remove all interests of a subscriber and return their number."""
        code = _code(subscriber, negative=False)
        before = len(self)
        self._regexes_changed(self._regexes.remove_codes({code, code | NEGATIVE}) > 0)
        for text, negative in self._kernel.remove_subscriber(code):
            self._remove_ranged(Interest.parse(text.decode()), _code(subscriber, negative))
        return before - len(self)

    def match(self, topic: str, tags: Iterable[str] = ()) -> list[int]:
        """Return the subscribers of a message with this topic and these tags, sorted."""
        data = check_topic(topic)
        if isinstance(tags, str):
            raise TopicError(f"tags must be a list, not the text {shown(tags)}", hint=f"write [{shown(tags)}]")
        tag_keys = [check_levels(tag, what="tag") for tag in tags]
        codes = self._regexes.match(data) if len(self._regexes) else None
        found: list[int] = numpy.sort(self._kernel.match(data, tag_keys, codes)).tolist()
        return found

    def match_batch(
        self,
        data: bytes | bytearray | memoryview,
        offsets: npt.NDArray[numpy.uint32],
        sizes: npt.NDArray[numpy.uint16],
    ) -> tuple[Offsets, Subscribers]:
        """Return the subscribers of many messages at once, with the output of a packet decoder as input.

        Topic i is the sizes[i] bytes of `data` at offsets[i] (uint16 and uint32). Its subscribers, unordered, are
        subscribers[result_offsets[i]:result_offsets[i + 1]]. Only the structure of a topic is checked, not its UTF-8; a
        malformed topic matches nothing and is counted in `malformed_count`.
        """
        offsets, sizes = numpy.ascontiguousarray(offsets), numpy.ascontiguousarray(sizes)
        if not len(self._regexes):
            return self._kernel.match_batch(data, offsets, sizes)
        return self._kernel.match_batch(data, offsets, sizes, *self.regex_codes(data, offsets, sizes))

    def regex_codes(
        self,
        data: bytes | bytearray | memoryview,
        offsets: npt.NDArray[numpy.uint32],
        sizes: npt.NDArray[numpy.uint16],
    ) -> tuple[Offsets, Subscribers]:
        """Return the regular expressions' results for topics given as to match_batch(), as input of the kernel."""
        view = memoryview(data)
        ranges = zip(offsets.tolist(), sizes.tolist(), strict=False)
        codes = [self._regexes.match(bytes(view[offset : offset + size])) for offset, size in ranges]
        code_offsets = numpy.zeros(len(codes) + 1, dtype=numpy.uint64)
        numpy.cumsum([len(found) for found in codes], out=code_offsets[1:])
        joined = numpy.concatenate(codes) if codes else numpy.empty(0, dtype=numpy.uint32)
        return code_offsets, joined

    def _regexes_changed(self, is_changed: bool) -> bool:
        self._kernel.regex_count = len(self._regexes)
        return is_changed

    # Ranges of two interests may share blocks. Therefore the text of a ranged interest is stored as well, with its
    # subscribers, and a block contains a subscriber once per interest.

    def _add_ranged(self, interest: Interest, code: int) -> bool:
        paths = _paths(interest, self.limits.range_blocks_max)
        key = interest.subject.encode()
        if not self._kernel.add_key(NodeKind.NODE_RANGED, key, code):
            return False
        done = 0
        try:
            for path in paths:
                self._kernel.add_path(path, code)
                done += 1
        except BaseException:
            for path in paths[:done]:
                self._kernel.remove_path(path, code)
            self._kernel.remove_key(NodeKind.NODE_RANGED, key, code)
            raise
        return True

    def _remove_ranged(self, interest: Interest, code: int) -> bool:
        if not self._kernel.remove_key(NodeKind.NODE_RANGED, interest.subject.encode(), code):
            return False
        for path in _paths(interest, self.limits.range_blocks_max):
            self._kernel.remove_path(path, code)
        return True


def _parsed(interest: str | Interest) -> Interest:
    return interest if isinstance(interest, Interest) else Interest.parse(interest)


def _code(subscriber: int, negative: bool) -> int:
    if not 0 <= subscriber <= SUBSCRIBER_MAX:
        raise LimitError(f"subscriber {subscriber} is outside 0 to {SUBSCRIBER_MAX}")
    return subscriber | NEGATIVE if negative else subscriber


def _codes(subscribers: Sequence[int] | Subscribers) -> Subscribers:
    wide = numpy.asarray(subscribers)
    if wide.size and not (wide.dtype.kind in "iu" and wide.min() >= 0 and wide.max() <= SUBSCRIBER_MAX):
        raise LimitError(f"a subscriber is outside 0 to {SUBSCRIBER_MAX}")
    return wide.astype(numpy.uint32)


def _paths(interest: Interest, blocks_max: int = 1) -> list[list[Step]]:
    """Return the pattern as paths through the table: one path, or with numeric ranges one per combination of their
    blocks.
    """
    choices = [_steps(level) for level in interest.levels]
    count = 1
    for steps in choices:
        count *= len(steps)
    if count > blocks_max:
        raise LimitError(
            f"the ranges expand into {count} blocks, above the limit of {blocks_max}",
            where=f"interest {interest.text!r}",
            hint="use limits that are multiples of powers of two, or split the interest",
        )
    return [list(path) for path in itertools.product(*choices)]


def _steps(level: Level) -> list[Step]:
    if isinstance(level, Literal):
        return [(NodeKind.NODE_LITERAL, level.text.encode())]
    if isinstance(level, Prefix):
        return [(NodeKind.NODE_PREFIX, level.text.encode())]
    if isinstance(level, NumericRange):
        return [
            (NodeKind.NODE_BLOCK, bytes([shift]) + value.to_bytes(8, "little"))
            for shift, value in blocks(level.low, level.high)
        ]
    return [(NodeKind.NODE_STAR if isinstance(level, AnyLevel) else NodeKind.NODE_REST, b"")]
