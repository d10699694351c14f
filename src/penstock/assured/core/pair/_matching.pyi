"""Records without endpoints."""

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.assured.core.router._parts import MessageParts
from penstock.assured.core.router._tables import Tables

class Unmatched(MessageParts):
    def __init__(self, data: Buffer) -> None: ...
    def matched(
        self,
        tables: Tables,
        offsets: NDArray[numpy.uint64],
        subscribers: NDArray[numpy.uint32],
        owners: NDArray[numpy.uint32],
        there: NDArray[numpy.uint32],
    ) -> bytes | None: ...
