from collections.abc import Callable

from typing_extensions import Buffer

from penstock.engine._consumers import Consumers
from penstock.wire import MessageBatch

class Distributor(Consumers):
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
        admit: Callable[[bytes, int, int], int | None],
    ) -> None: ...
    def publish(
        self, topic: bytes, model_id: int, model_version: int, record: Buffer, started_ns: int, version: int = 0
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
    def distribute(self, messages: MessageBatch, started_ns: int) -> int: ...
    def serve(self, now_ns: int, budget_bytes: int = -1) -> int: ...
    def attend_to(self, number: int, now_ns: int) -> None: ...
    def restart(self, number: int, last_number: int, now_ns: int) -> bool: ...
    def next_pace_ns(self) -> int | None: ...
