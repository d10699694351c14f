from penstock.engine.core.kernel._adaptive import AdaptiveClass
from penstock.engine.core.kernel._metered import MeteredClass

class Withheld:
    adaptive: AdaptiveClass
    metered: MeteredClass
    def __init__(self, adaptive: AdaptiveClass, metered: MeteredClass) -> None: ...
