from collections.abc import Callable, Sequence

from typing_extensions import Buffer

from penstock.engine._metering import Metering
from penstock.engine._withheld import Withholding
from penstock.wire import MessageBatch

class Distributor(Withholding):
    budget_bytes: int
    oversized: int
    fragments: int
    def __init__(
        self,
        *,
        consumers_max: int,
        items_max: int,
        pairs_max: int,
        seed: int,
        history_bytes: int,
        budget_bytes: int,
        weights: Sequence[int],
        metering: Metering | None,
        is_common: bool,
        serves_all_pending: bool,
        drops: bool,
        admit: Callable[[bytes, int, int], int | None],
    ) -> None: ...
    @property
    def backlog(self) -> int: ...
    def publish(
        self,
        topic: bytes,
        model_id: int,
        model_version: int,
        record: Buffer,
        started_ns: int,
        version: int,
        now_ns: int,
    ) -> bool: ...
    def image(
        self,
        topic: bytes,
        model_id: int,
        model_version: int,
        record: Buffer,
        started_ns: int,
        version: int,
        is_repair: bool,
        now_ns: int,
    ) -> bool: ...
    def lose_upstream(self, now_ns: int) -> None: ...
    def distribute(self, messages: MessageBatch, now_ns: int, started_ns: int) -> int: ...
    def serve(self, now_ns: int, budget_bytes: int = -1) -> int: ...
    def attend_to(self, number: int, now_ns: int) -> None: ...
    def begin_replay(self, number: int, last_number: int) -> bool: ...
    def restart(self, number: int, last_number: int, now_ns: int) -> bool: ...
    def next_pace_ns(self) -> int | None: ...
