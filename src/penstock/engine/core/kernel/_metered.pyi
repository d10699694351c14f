from penstock.engine.core.kernel._consumers import Consumers
from penstock.engine.core.kernel._metering import Metering

class MeteredClass:
    metering: Metering | None
    def __init__(self, consumers: Consumers, metering: Metering | None, drops: bool) -> None: ...
