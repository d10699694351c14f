from collections.abc import Mapping

from penstock.topics import Predicate

class Condition:
    def __init__(self, wanted: Mapping[tuple[int, int], Predicate] | bytes) -> None: ...
