"""Records returned by readers: one by one, or many in one buffer."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy
from numpy.typing import NDArray

from penstock.journal.core._log import RECORD_DTYPE


class Record(NamedTuple):
    sequence: int
    timestamp_ns: int
    payload: bytes


class RecordBatch(msgspec.Struct, frozen=True):
    """Records in one buffer: the payload of a row is data[offset : offset + size]. The rows are of RECORD_DTYPE."""

    data: bytes
    rows: NDArray[numpy.void]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Record]:
        data = self.data
        for sequence, timestamp_ns, _, offset, size in self.rows.tolist():
            yield Record(sequence, timestamp_ns, data[offset : offset + size])


NOTHING = RecordBatch(b"", numpy.empty(0, RECORD_DTYPE))
