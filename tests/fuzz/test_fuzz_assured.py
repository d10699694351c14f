"""Random bytes on a link of assured messaging: refused, or decoded as complete frames, for any division into reads."""

import random

from penstock.assured.wire.frames import (
    Delivered,
    FrameSplitter,
    Published,
    decode_frames,
    encode_acknowledge,
    encode_credit,
    encode_deliver,
    encode_publish,
    encode_settle,
)
from penstock.base.errors import RemoteProtocolError


def rubbish(chance: random.Random) -> bytes:
    parts = []
    for _ in range(chance.randint(1, 6)):
        topic, payload = b"a" * chance.randrange(20), chance.randbytes(chance.randrange(60))
        frame = bytearray(
            chance.choice(
                (
                    encode_publish(1, 1, [Published(topic, payload)] * chance.randint(1, 4)),
                    encode_deliver(1, [Delivered(1, topic, payload)] * chance.randint(1, 4)),
                    encode_acknowledge(1, [(1, 4, 1)] * chance.randint(1, 4)),
                    encode_settle(1, [(at, at, 1) for at in range(1, chance.randint(2, 5))]),
                    encode_credit(1, 5),
                    b"\x02\x00\x00\x00\x80\x01",
                )
            )
        )
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        if chance.random() < 0.05:
            del frame[chance.randrange(len(frame)) :]
        parts.append(bytes(frame))
    return b"".join(parts)


def outcome(data: bytes, cuts: list[int]) -> tuple[bytes, list[bytes], bool]:
    splitter = FrameSplitter(4_096)
    found = [
        each
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)
        for each in splitter.feed(data[start:end])
    ]
    frames = b"".join(piece for is_data, piece in found if is_data)
    return frames, [piece for is_data, piece in found if not is_data], bool(splitter.failure)


def test_random_bytes_on_a_link(soak: bool) -> None:
    chance = random.Random(9)
    good = bad = 0
    for _ in range(50_000 if soak else 1_000):
        data = rubbish(chance)
        whole = outcome(data, [])
        cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.randrange(6)))
        assert outcome(data, cuts) == whole, data.hex()
        try:
            decode_frames(whole[0])
        except RemoteProtocolError:
            bad += 1
        else:
            good += 1
    assert good > 100
    assert bad > 100
