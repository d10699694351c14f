"""Journal records without a journal."""

import numpy

from penstock.journal import RecordBatch
from penstock.journal.core._log import RECORD_DTYPE


def batch_of(contents: list[bytes], first: int = 1, prefix: bytes = b"") -> RecordBatch:
    """Records in one buffer, as a reader returns them."""
    rows = numpy.zeros(len(contents), RECORD_DTYPE)
    data = bytearray(prefix)
    for index, content in enumerate(contents):
        rows[index] = (first + index, 1_000 * (first + index), 0, len(data), len(content))
        data += content
    return RecordBatch(bytes(data), rows)
