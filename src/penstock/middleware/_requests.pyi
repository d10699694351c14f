from penstock.wire import Authenticator, DatagramBatch

class RequestGate:
    def __init__(
        self,
        seed: int,
        *,
        publisher_id: int,
        own: int,
        source_per_s: float,
        source_burst: float,
        total_per_s: float,
        total_burst: float,
        authenticator: Authenticator | None = None,
    ) -> None: ...
    @property
    def limited(self) -> int: ...
    def admit(self, batch: DatagramBatch, now_ns: int) -> None: ...
