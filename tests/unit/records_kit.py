"""A region of quotes, written as a node writes it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from penstock.engine.client._store import RecordStore
from penstock.engine.client._watch import Watch
from penstock.model import Message, shipped
from penstock.shm import RegionWriter

QUOTE = shipped("quote")


class Quotes:
    """Writes quotes; `store` and `watch` read them."""

    def __init__(self, writer: RegionWriter, **options: Any) -> None:
        self.writer = writer
        self.store = RecordStore(self.writer.segment, QUOTE, **options)
        self.watch = Watch(self.store)
        self.current: dict[int, Message] = {}
        for slot in range(writer.record_count):
            self.watch.admit(slot)

    def write(self, slot: int, **values: Any) -> None:
        message = self.current.setdefault(slot, QUOTE.new())
        for name, value in values.items():
            setattr(message, name, value)
        self.writer.write(slot, message)

    def update(self, slot: int, **values: Any) -> None:
        """Write as a node does, with a notice."""
        self.write(slot, **values)
        self.watch.notice(slot)

    def drain(self, now_ns: int, wall_ns: int = 0) -> list[int]:
        """The slots with a notification due at this time."""
        found = []
        while (told := self.watch.next(now_ns, wall_ns)) is not None:
            found.append(told[0])
        return found


@contextmanager
def quotes(count: int = 4, **options: Any) -> Iterator[Quotes]:
    with RegionWriter.create(count, [part.size for part in QUOTE.parts]) as writer:
        made = Quotes(writer, **options)
        with made.store:
            yield made
