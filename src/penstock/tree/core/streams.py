"""StreamTable: the streams that an agent knows, by number and by name, and the terms of each."""

from collections.abc import Iterator

import msgspec

from penstock.tree.core.control import StreamInfo, Want
from penstock.tree.core.environment import Environment
from penstock.tree.core.kernel._fanout import Fanout

WHOLE_STREAM = Want((">",))
"""All messages of a stream, also those on topics that it no longer has."""


class Stream:
    def __init__(self, info: StreamInfo) -> None:
        self.info = info

    @property
    def number(self) -> int:
        return self.info.number

    @property
    def term(self) -> int:
        return self.info.begins[-1][0] if self.info.begins else 0

    def term_after(self, sequence: int) -> int:
        """The term of the message after this sequence; messages of an older term are not accepted there."""
        return next((term for term, after in reversed(self.info.begins) if after <= sequence), 0)

    def end_of(self, term: int) -> int | None:
        """The sequence after which a newer term begins; None if `term` is the newest, or unknown."""
        return next((after for each, after in self.info.begins if each > term), None)


class StreamTable:
    """Owns the streams and their terms; the fan-out has their positions."""

    def __init__(self, environment: Environment, fanout: Fanout) -> None:
        self._environment = environment
        self._fanout = fanout
        self._streams: dict[int, Stream] = {}
        self._numbers: dict[str, int] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(self._streams.values())

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, number: int) -> Stream:
        return self._streams[number]

    def get(self, number: int) -> Stream | None:
        return self._streams.get(number)

    def named(self, name: str) -> Stream | None:
        number = self._numbers.get(name)
        return None if number is None else self._streams[number]

    def numbers(self) -> set[int]:
        return set(self._streams)

    @property
    def is_full(self) -> bool:
        return len(self._streams) >= self._environment.config.streams_max

    def open(self, info: StreamInfo, *, last: int, term: int) -> Stream:
        """A stream that is new to this agent; messages after `last` are accepted from now on."""
        stream = self._streams[info.number] = Stream(info)
        self._numbers[info.name] = info.number
        self._fanout.open_stream(info.number, term=term, last=last)
        self._environment.accounts.begun[info.number] = (last, 0)
        return stream

    def replace(self, info: StreamInfo) -> None:
        """The stream has a newer term, or other topics."""
        self._streams[info.number].info = info

    def set_topics(self, stream: Stream, topics: tuple[str, ...]) -> None:
        stream.info = msgspec.structs.replace(stream.info, topics=topics)

    def last(self, number: int) -> int:
        """The sequence of the newest message."""
        return self._fanout.stream(number).last
