import numpy
from numpy.typing import NDArray

from penstock.wire._batch import Bytes

def digest_rows(
    topic_data: Bytes,
    payloads: Bytes,
    rows: NDArray[numpy.void],
    origins: NDArray[numpy.void],
    left_out: NDArray[numpy.uint32],
) -> NDArray[numpy.int64]: ...
