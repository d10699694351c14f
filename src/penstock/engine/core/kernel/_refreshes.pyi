from penstock.engine.core.kernel._withheld import Withheld

class Refreshes:
    def __init__(self, withheld: Withheld) -> None: ...
