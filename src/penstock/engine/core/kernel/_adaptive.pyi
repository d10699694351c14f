from penstock.engine.core.kernel._regions import Regions

class AdaptiveClass:
    def __init__(self, regions: Regions, serves_all: bool) -> None: ...
