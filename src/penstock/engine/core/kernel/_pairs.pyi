class Pairs:
    used: int
    pairs_max: int
    room: int
    def __init__(self, pairs_max: int, seed: int) -> None: ...
