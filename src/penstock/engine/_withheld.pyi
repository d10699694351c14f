from typing import Any

from penstock.engine._classify import ClassProgram
from penstock.engine._consumers import Consumers
from penstock.engine._metering import Metering
from penstock.engine._regions import RegionSink

class Withholding(Consumers):
    metering: Metering | None
    def __init__(
        self,
        *,
        metering: Metering | None,
        is_common: bool = True,
        serves_all_pending: bool = False,
        drops: bool = False,
        **_: Any,
    ) -> None: ...
    def want(
        self,
        number: int,
        item: int,
        cls: int,
        served: int,
        program: ClassProgram | None,
        interval_ns: int,
        now_ns: int,
        replayed_after: int | None = None,
    ) -> bool: ...
    def choose(
        self,
        number: int,
        item: int,
        cls: int,
        served: int,
        program: ClassProgram | None,
        interval_ns: int,
        now_ns: int,
    ) -> None: ...
    def take_requests(self) -> list[tuple[int, int]]: ...
    def slots_needed(self, number: int, model_id: int) -> int: ...
    def open_region(self, number: int, model_id: int, sink: RegionSink) -> None: ...
    def notify_anew(self, number: int) -> None: ...
