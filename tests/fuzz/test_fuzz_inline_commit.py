"""Random frames to a router that serves a publisher without its loop: accepted or refused as usual."""

import random
from contextlib import closing
from pathlib import Path

import pytest

from assured_kit import Router, queue
from fuzz.test_fuzz_pair import damaged
from inline_commit_kit import RealJournal, ServedRouter
from penstock.assured.core.router._records import is_record
from penstock.assured.core.router.events import Data
from penstock.assured.wire.frames import Published, encode_publish
from penstock.journal import JournalConfig

ROUNDS = 300
SOAK_ROUNDS = 5_000
ENDPOINTS = (queue("orders", "orders.>"), queue("few", "few", messages_max=3), queue("both", "orders.*"))
TOPICS = (b"orders.new", b"few", b"nobody", b"", b"a..b", b"\xff")


def some_frame(handle: int, number: int, chance: random.Random) -> bytes:
    message = Published(
        chance.choice(TOPICS),
        chance.randbytes(chance.choice((0, 1, 8, 100, 3_000))),
        priority=chance.randrange(10),
        ttl_ms=chance.choice((0, 1_000)),
    )
    frame = encode_publish(handle, number, [message])
    return damaged(frame, chance) if chance.random() < 0.7 else frame


def open_again(router: Router) -> int:
    """The client's link, if it was closed, and the publisher."""
    if router.core.links.get(1) is None:
        router.link(1)
    return router.publisher(1)


@pytest.mark.parametrize("seed", range(3))
def test_damaged_frames_on_the_inline_path(tmp_path: Path, seed: int, soak: bool) -> None:
    chance = random.Random(seed)
    journal = RealJournal(tmp_path / "journal", JournalConfig(segment_bytes=65_536, preallocate_bytes=16_384))
    plain = Router(*ENDPOINTS)
    plain.link(1)
    with closing(ServedRouter(*ENDPOINTS, journal=journal)) as served:
        handle = served.publisher(1)
        assert plain.publisher(1) == handle
        for number in range(1, (SOAK_ROUNDS if soak else ROUNDS) + 1):
            data = some_frame(handle, number, chance)
            served.serve(data)
            plain.now_ns = served.now_ns
            plain.tell(Data(1, data))
            assert served.outcomes(1) == plain.outcomes(1)
            assert (served.core.links.get(1) is None) == (plain.core.links.get(1) is None)
            if served.core.links.get(1) is None:
                handle = open_again(served)
                assert open_again(plain) == handle
        assert served.kernel.served > number / 10
        assert served.core.tables.publishers.outcome_counts() == plain.core.tables.publishers.outcome_counts()
        assert served.journal.read() == plain.journal.records
        assert all(is_record(payload) for _, payload in served.journal.read().values())
