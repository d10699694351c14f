"""Contributions as a source stream: what a subscriber sends in is converted by leaving it as it is.

    source message    0  model id  u16    2  model version  u16    4  topic size  u16    6  topic, then the payload

All little-endian. Such a stream has no conversion state: two adapters differ at most in how far they have come.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.convert import SourceBatch
from penstock.middleware.unicast import Contribution
from penstock.topics import check_topic
from penstock.wire import MESSAGE_DTYPE, Extension, Origin, encode_extensions, encode_origin

HEADER = struct.Struct("<HHH")
CHECKPOINTS_MAX = 64


def encode_contribution(message: Contribution) -> bytes:
    topic = check_topic(message.topic)
    return HEADER.pack(message.model_id, message.model_version, len(topic)) + topic + message.payload


class Checkpoint(msgspec.Struct, frozen=True):
    next_source_sequence: int
    next_message_sequence: int
    digest: int = 0


class NoState:
    """Nothing to compare, nothing to send."""

    digest = 0

    def unit_digests(self) -> bytes:
        return b""

    def begin_image(self, known: Any = None) -> "NoState":
        return self

    def chunk(self, size_max: int) -> bytes:
        return b""

    def install(self, chunks: Iterable[bytes]) -> None:
        for _ in chunks:
            continue


class Contributed(msgspec.Struct, frozen=True):
    topic_data: bytes
    payloads: NDArray[numpy.uint8]
    rows: NDArray[Any]

    def __len__(self) -> int:
        return len(self.rows)


class ContributionConverter:
    """What feed.conversion.Conversion asks for. Messages it is given were checked by encode_contribution()."""

    def __init__(self, stream_id: int, *, checkpoint_interval: int = 1_024) -> None:
        self.stream_id = stream_id
        self.next_source_sequence = 0
        self.next_message_sequence = 1
        self.term = 0
        self.flags = 0
        self.state = NoState()
        self._interval = checkpoint_interval
        self._checkpoints: list[Checkpoint] = []

    def convert(self, batch: SourceBatch) -> Contributed:
        topics, payloads = bytearray(), bytearray()
        rows: list[tuple[int, ...]] = []
        for sequence, message in batch:
            if sequence < self.next_source_sequence:
                continue
            model_id, model_version, topic_size = HEADER.unpack_from(message)
            origin = Origin(self.stream_id, self.term, 0, self.flags, sequence, self.next_message_sequence)
            extensions = encode_extensions({Extension.ORIGIN: encode_origin(origin)})
            topic = message[HEADER.size : HEADER.size + topic_size]
            content = message[HEADER.size + topic_size :]
            at = len(payloads)
            payload_at = at + len(extensions)
            rows.append(
                (0, len(topics), payload_at, len(content), at, topic_size, len(extensions), 0, model_id, model_version, 0)
            )
            topics += topic
            payloads += extensions + content
            self.next_message_sequence += 1
            self.next_source_sequence = sequence + 1
            if self.next_source_sequence % self._interval == 0:
                self._checkpoints.append(self.checkpoint_now())
                del self._checkpoints[:-CHECKPOINTS_MAX]
        return Contributed(
            bytes(topics), numpy.frombuffer(bytes(payloads), numpy.uint8), numpy.array(rows, MESSAGE_DTYPE)
        )

    def skip_to(self, sequence: int) -> None:
        self.next_source_sequence = sequence

    def take_checkpoints(self) -> Sequence[Checkpoint]:
        taken, self._checkpoints = self._checkpoints, []
        return taken

    def checkpoint_now(self) -> Checkpoint:
        return Checkpoint(self.next_source_sequence, self.next_message_sequence)

    def new_session(self, name: str) -> None:
        """A contributor has no days."""
