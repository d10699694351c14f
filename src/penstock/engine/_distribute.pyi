from collections.abc import Callable, Container, Iterable, Sequence

from typing_extensions import Buffer

from penstock.engine._critical import Critical
from penstock.engine._items import Items
from penstock.engine._metering import Metering
from penstock.engine._pairs import Pairs
from penstock.wire import MessageBatch

class Distributor(Critical):
    budget_bytes: int
    oversized: int
    fragments: int
    @property
    def has_backlog(self) -> bool: ...
    def __init__(
        self,
        *,
        consumers_max: int,
        items: Items,
        pairs: Pairs,
        history_bytes: int,
        budget_bytes: int,
        weights: Sequence[int],
        metering: Metering | None,
        is_common: bool,
        serves_all_pending: bool,
        drops: bool,
        admit: Callable[[bytes, int, int], int | None],
    ) -> None: ...
    def publish(
        self,
        topic: bytes,
        model_id: int,
        model_version: int,
        record: Buffer,
        started_ns: int,
        version: int,
        now_ns: int,
        merged: int = 1,
        source: tuple[int, int, int] | None = None,
        session_id: int = 0,
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
        session_id: int = 0,
    ) -> bool: ...
    def lose_upstream(self, now_ns: int) -> None: ...
    def withdraw(self, topic: bytes, model_id: int, version: int, now_ns: int) -> bool: ...
    def withdraw_items(self, numbers: Iterable[int], now_ns: int) -> int: ...
    def withdraw_stream(self, feed: int, stream: int, session_tag: int, is_begun: bool, now_ns: int) -> int: ...
    def withdraw_sessions(self, ended: Container[int], running: Container[int], now_ns: int) -> int: ...
    def name_feed(self, feed: int, checksum: int) -> None: ...
    def remind(self, number: int) -> None: ...
    def tell_session(self, body: bytes, now_ns: int) -> None: ...
    def tell_session_to(self, number: int, body: bytes) -> bool: ...
    def told_sessions(self, number: int) -> None: ...
    def take_sessions_lost(self) -> list[int]: ...
    def sessions_after(self, number: int) -> int: ...
    def distribute(self, messages: MessageBatch, now_ns: int, started_ns: int, feed: int = 0) -> int: ...
    def serve(self, now_ns: int, budget_bytes: int = -1) -> int: ...
