from typing import Any

import numpy
from numpy.typing import NDArray

from penstock.engine.core.kernel._classify import ClassProgram
from penstock.engine.core.kernel._metering import Metering
from penstock.engine.core.kernel._regional import Regional

class Withholding(Regional):
    metering: Metering | None
    def __init__(
        self,
        *,
        metering: Metering | None,
        serves_all_pending: bool = False,
        drops: bool = False,
        **_: Any,
    ) -> None: ...
    def want(
        self,
        number: int,
        items: NDArray[numpy.uint32],
        cls: int,
        served: int,
        program: ClassProgram | None,
        interval_ns: int,
        now_ns: int,
        replayed_after: int | None = None,
    ) -> list[int]: ...
    def choose(
        self,
        number: int,
        items: NDArray[numpy.uint32],
        cls: int,
        served: int,
        program: ClassProgram | None,
        interval_ns: int,
        now_ns: int,
        is_sole: bool = False,
    ) -> list[int]: ...
