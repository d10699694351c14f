from typing import Any

import numpy
from numpy.typing import NDArray

ACTION_ADD: int
ACTION_MODIFY: int
ACTION_REPLACE: int
ACTION_CANCEL: int
ACTION_DELETE: int
ACTION_EXECUTE: int
ACTION_CLEAR: int
ACTION_ORDER: int
ACTION_PENDING: int
FLAG_LAST: int
FLAG_HIDDEN: int
INSTRUMENTS_MAX: int
SIDES: tuple[str, str]
EVENT_DTYPE: numpy.dtype[numpy.void]

class BookKernel:
    def __init__(self, levels_max: int) -> None: ...
    @property
    def counts(self) -> list[int]: ...
    @property
    def levels_max(self) -> int: ...
    def instrument(self) -> int: ...
    def apply(self, events: NDArray[numpy.void]) -> tuple[dict[str, Any], dict[str, Any]]: ...
    def carried(self) -> NDArray[numpy.void]: ...
