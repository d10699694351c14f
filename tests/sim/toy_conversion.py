"""A converter in a few lines, with the interface of the real one, so that tests can observe the cores of a feed."""

import hashlib
import json
from collections.abc import Iterable
from datetime import date
from typing import Any

import numpy

from penstock.base.errors import RemoteProtocolError
from penstock.convert import SourceBatch
from penstock.feed.core.conversion import Checkpoint
from penstock.wire import MESSAGE_DTYPE, Extension, Origin, encode_extensions, encode_origin


def hash_of(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class ToyCheckpoint:
    def __init__(self, next_source_sequence: int, next_message_sequence: int, digest: int) -> None:
        self.next_source_sequence = next_source_sequence
        self.next_message_sequence = next_message_sequence
        self.digest = digest


class ToyImage:
    def __init__(self, units: dict[str, int]) -> None:
        self._data = json.dumps(units).encode()

    def chunk(self, size_max: int) -> bytes:
        data, self._data = self._data[:size_max], self._data[size_max:]
        return data


class ToyState:
    """A total for each symbol."""

    def __init__(self) -> None:
        self.units: dict[str, int] = {}

    @property
    def digest(self) -> int:
        return sum(hash_of(*item) for item in self.units.items()) % 2**64

    def unit_digests(self) -> Any:
        text = json.dumps({name: hash_of(name, value) for name, value in self.units.items()}).encode()
        return numpy.frombuffer(text + b" " * (-len(text) % 8), numpy.uint64)

    def begin_image(self, known: Any = None) -> ToyImage:
        theirs = {} if known is None else json.loads(known.tobytes())
        changed: dict[str, Any] = {k: v for k, v in self.units.items() if theirs.get(k) != hash_of(k, v)}
        changed |= {name: None for name in theirs if name not in self.units}
        if known is None:
            changed[""] = None
        return ToyImage(changed)

    def install(self, chunks: Iterable[bytes]) -> None:
        try:
            changed = json.loads(b"".join(chunks))
        except ValueError:
            raise RemoteProtocolError("no image") from None
        if "" in changed:
            self.units.clear()
        for name, value in changed.items():
            if value is None:
                self.units.pop(name, None)
            else:
                self.units[name] = value


class ToyConverted:
    def __init__(self, messages: list[tuple[str, Origin, bytes]]) -> None:
        self.messages = messages
        topics, payloads = bytearray(), bytearray()
        self.rows = numpy.zeros(len(messages), MESSAGE_DTYPE)
        for row, (topic, origin, payload) in zip(self.rows, messages, strict=True):
            extension = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
            row["topic_offset"], row["topic_size"] = len(topics), len(topic)
            row["extensions_offset"], row["extensions_size"] = len(payloads), len(extension)
            row["payload_offset"], row["payload_size"] = len(payloads) + len(extension), len(payload)
            topics += topic.encode()
            payloads += extension + payload
        self.topic_data = bytes(topics)
        self.payloads = numpy.frombuffer(bytes(payloads), numpy.uint8)

    def __len__(self) -> int:
        return len(self.rows)


class ToyConversion:
    """Source messages are `SYMBOL:amount`; an amount divisible by 3 produces no message, an amount divisible by 5
    two."""

    def __init__(self, stream_id: int = 1, checkpoint_interval: int = 8) -> None:
        self.stream_id = stream_id
        self.plan_number = 1
        self.state = ToyState()
        self.next_source_sequence = 0
        self.next_message_sequence = 1
        self.term = self.flags = 0
        self.checkpoint_interval = checkpoint_interval
        self.is_over = False
        self.trading_date: date | None = None
        self._checkpoints: list[Checkpoint] = []

    def convert(self, batch: SourceBatch) -> ToyConverted:
        messages: list[tuple[str, Origin, bytes]] = []
        for sequence, data in batch:
            if self.next_source_sequence and sequence < self.next_source_sequence:
                continue
            assert self.next_source_sequence in (0, sequence), (self.next_source_sequence, sequence)
            self._convert_one(sequence, data, messages)
            self.next_source_sequence = sequence + 1
            if (sequence + 1) % self.checkpoint_interval == 0:
                self._checkpoints.append(self.checkpoint_now())
        return ToyConverted(messages)

    def _convert_one(self, sequence: int, data: bytes, messages: list[tuple[str, Origin, bytes]]) -> None:
        symbol, amount = data.decode().split(":")
        total = self.state.units[symbol] = self.state.units.get(symbol, 0) + int(amount)
        count = 0 if int(amount) % 3 == 0 else 2 if int(amount) % 5 == 0 else 1
        for index in range(count):
            origin = Origin(self.stream_id, self.term, index, self.flags, sequence, self.next_message_sequence)
            messages.append((f"md.toy.{symbol}", origin, f"{symbol} {total} {index}".encode()))
            self.next_message_sequence += 1

    def skip_to(self, sequence: int) -> None:
        self.next_source_sequence = sequence

    def take_checkpoints(self) -> list[Checkpoint]:
        taken, self._checkpoints = self._checkpoints, []
        return taken

    def checkpoint_now(self) -> Checkpoint:
        return ToyCheckpoint(self.next_source_sequence, self.next_message_sequence, self.state.digest)

    def new_session(self, name: str, trading_date: date | None, *, is_continued: bool = False) -> None:
        self.state.units.clear()
        self.trading_date = trading_date
        self.next_source_sequence = 0
