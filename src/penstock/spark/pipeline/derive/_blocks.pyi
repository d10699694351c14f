from collections.abc import Sequence
from typing import Any

import numpy
from numpy.typing import NDArray

def encode(
    columns: dict[str, NDArray[Any]], order: NDArray[numpy.int64], starts: Sequence[int], instrument_count: int
) -> tuple[NDArray[numpy.uint8], list[int], list[NDArray[numpy.uint32]]]: ...
def decode(data: NDArray[numpy.uint8], instruments: NDArray[numpy.uint32], events: NDArray[numpy.void]) -> None: ...
