"""Records that came without their endpoints."""

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.assured._tables import Tables

class Unmatched:
    data: Buffer
    topic_offsets: NDArray[numpy.uint32]
    topic_sizes: NDArray[numpy.uint16]
    payload_offsets: NDArray[numpy.uint32]
    payload_sizes: NDArray[numpy.uint32]
    model_ids: NDArray[numpy.uint16]
    model_versions: NDArray[numpy.uint16]
    def __init__(self, data: Buffer) -> None: ...
    def __len__(self) -> int: ...
    def matched(
        self,
        tables: Tables,
        offsets: NDArray[numpy.uint64],
        subscribers: NDArray[numpy.uint32],
        owners: NDArray[numpy.uint32],
        there: NDArray[numpy.uint32],
    ) -> bytes | None: ...
