"""Streams of random bytes: the decoder's result does not depend on their division, and its memory is bounded."""

import random

from penstock.base.errors import FrameError
from penstock.net import FrameDecoder

SIZE_MAX = 40
LENGTHS = [0, 1, 3, 39, 40, 41, 255, 2**16, 2**31, 2**32 - 1]


def rubbish(chance: random.Random) -> bytes:
    parts = []
    for _ in range(chance.randint(1, 12)):
        length = chance.choice(LENGTHS)
        parts.append(length.to_bytes(4, "little") + chance.randbytes(min(length, 50)))
    return b"".join(parts)[: chance.randrange(600)]


def verdict(stream: bytes, cuts: list[int]) -> tuple[list[bytes], bool, int]:
    decoder = FrameDecoder(SIZE_MAX)
    frames: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        try:
            frames += decoder.feed(stream[start:end])
        except FrameError as error:
            return frames + error.frames, False, decoder.kept_size
        assert decoder.kept_size < SIZE_MAX + 4
    return frames, True, decoder.kept_size


def test_random_bytes(soak: bool) -> None:
    chance = random.Random(5)
    outcomes = set()
    for _ in range(50_000 if soak else 1_000):
        stream = rubbish(chance)
        cuts = sorted(chance.randrange(len(stream) + 1) for _ in range(chance.randrange(6)))
        whole = verdict(stream, [])
        assert verdict(stream, cuts) == whole, stream.hex()
        assert verdict(stream, list(range(1, len(stream)))) == whole, stream.hex()
        outcomes.add(whole[1])
    assert outcomes == {True, False}
