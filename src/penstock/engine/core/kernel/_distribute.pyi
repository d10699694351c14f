from collections.abc import Callable, Container, Iterable, Sequence
from typing import TypedDict

import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.engine.core.kernel._classify import ClassProgram
from penstock.engine.core.kernel._consumers import Consumers
from penstock.engine.core.kernel._critical import CriticalClass
from penstock.engine.core.kernel._items import Items
from penstock.engine.core.kernel._metering import Metering
from penstock.engine.core.kernel._pairs import Pairs
from penstock.engine.core.kernel._region_sink import RegionSink
from penstock.engine.core.kernel._regions import Regions
from penstock.wire import MessageBatch

class ClassCounts(TypedDict):
    sent: int
    bytes: int
    conflated: int
    congested: int

class ConsumerCounts(TypedDict):
    items: int
    overruns: int
    receipts: int
    waiting: int
    pending: int
    is_behind: bool
    critical: ClassCounts
    adaptive: ClassCounts
    metered: ClassCounts

class Distributor:
    items: Items
    pairs: Pairs
    consumers: Consumers
    regions: Regions
    critical: CriticalClass
    metering: Metering | None
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
    def detach(self, consumer_number: int) -> None: ...
    def live(self, consumer_number: int, subscription: int) -> None: ...
    def open_region(self, consumer_number: int, model_id: int, sink: RegionSink) -> None: ...
    def restart_notices(self, consumer_number: int) -> None: ...
    def restart(self, consumer_number: int, last_number: int, now_ns: int) -> bool: ...
    def serve_consumer(self, consumer_number: int, now_ns: int) -> None: ...
    def refresh_withdrawn(self, consumer_number: int) -> None: ...
    def counts(self, consumer_number: int) -> ConsumerCounts: ...
    def subscribe(
        self,
        consumer_number: int,
        items: NDArray[numpy.uint32],
        cls: int,
        served: int,
        program: ClassProgram | None,
        interval_ns: int,
        now_ns: int,
        replayed_after: int | None = None,
    ) -> list[int]: ...
    def unsubscribe(self, consumer_number: int, item: int, is_told: bool = False) -> int: ...
    def change_class(
        self,
        consumer_number: int,
        items: NDArray[numpy.uint32],
        cls: int,
        served: int,
        program: ClassProgram | None,
        interval_ns: int,
        now_ns: int,
        is_sole: bool = False,
    ) -> list[int]: ...
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
    def send_session(self, body: bytes, now_ns: int) -> None: ...
    def send_session_to(self, consumer_number: int, body: bytes) -> bool: ...
    def distribute(self, messages: MessageBatch, now_ns: int, started_ns: int, feed: int = 0) -> int: ...
    def serve(self, now_ns: int, budget_bytes: int = -1) -> int: ...
