from typing_extensions import Buffer

from penstock.wire import Authenticator, DatagramBatch

REQUESTERS_MAX: int
REQUEST_WINDOW: int

class RequestGate:
    own: int
    def __init__(
        self,
        seed: int,
        *,
        publisher_id: int,
        source_per_s: float,
        source_burst: float,
        total_per_s: float,
        total_burst: float,
        authenticator: Authenticator | None = None,
        own: int = 0,
    ) -> None: ...
    @property
    def limited(self) -> int: ...
    @property
    def stale(self) -> int: ...
    def admit(self, batch: DatagramBatch, now_ns: int) -> None: ...
    def admits(self, data: Buffer, source: int, now_ns: int) -> bool: ...
