class Pairs:
    used: int
    pairs_max: int
    room: int
    consumers_max: int
    def __init__(self, pairs_max: int, consumers_max: int, seed: int) -> None: ...
