"""Journals with generated messages, for tests of their readers."""

from pathlib import Path

import numpy

from penstock.journal import JournalConfig, JournalWriter
from penstock.model import MessageModel, shipped
from penstock.wire import Extension, Origin, Packer, encode_extensions, encode_origin

GROUP = 0xEF010101
TERM = 1 << 14
TRADE = shipped("trade")
FIRST_NS = 1_700_000_000_000_000_000


def trade(number: int) -> bytes:
    return bytes(TRADE.new(symbol=f"S{number % 5}", price=number, quantity=number, event_time=FIRST_NS + number))


class Publisher:
    """Makes packets with trades of stream 7; a message's number is also its price and size."""

    def __init__(self, publisher: int = 1) -> None:
        self._packer = Packer(publisher, GROUP, 1)
        self._next = 1

    def packets(self, count: int, model: MessageModel = TRADE) -> list[bytes]:
        made = []
        for number in range(self._next, self._next + count):
            origin = Origin(7, TERM, 0, 1, number, number)
            extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
            topic = f"md.S{number % 5}.trade"
            made += self._packer.add(topic, trade(number), model_id=model.id, model_version=1, extensions=extensions)
        self._next += count
        rest = self._packer.flush()
        return [*made, rest] if rest else made


def append(path: Path, contents: list[bytes], segment_bytes: int = 65_536) -> None:
    """Record n has the time FIRST_NS + n seconds."""
    with JournalWriter.open(path, JournalConfig(segment_bytes=segment_bytes, preallocate_bytes=0)) as journal:
        for begin in range(0, len(contents), 32):
            part = contents[begin : begin + 32]
            sizes = numpy.array([len(content) for content in part], numpy.uint32)
            offsets = (numpy.cumsum(sizes) - sizes).astype(numpy.uint32)
            numbers = numpy.arange(journal.next_sequence, journal.next_sequence + len(part))
            journal.append_packed(b"".join(part), offsets, sizes, FIRST_NS + numbers * 10**9)
            journal.commit()
