"""Random bytes from clients of a message router: each client is disconnected or its frames are accepted; the others are
served."""

import random

import pytest

from assured_kit import Router, message, queue
from penstock.assured.core.router._records import is_record
from penstock.assured.core.router.events import Data
from penstock.assured.wire.frames import encode_acknowledge, encode_credit, encode_publish, encode_settle

ROUNDS = 400


def rubbish(chance: random.Random) -> bytes:
    """Frames, most of them nearly valid."""
    first = (1 << 40) + chance.randrange(20)
    frame = bytearray(
        chance.choice(
            (
                encode_publish(
                    chance.randrange(1, 3),
                    chance.randrange(1, 10_000),
                    [message("x" * chance.randrange(50), ttl_ms=chance.randrange(3))] * chance.randint(1, 5),
                    transaction=chance.randrange(2),
                ),
                encode_settle(
                    chance.randrange(1, 4),
                    [(first, first + chance.choice((0, 5, 2**62)), chance.randrange(1, 5))],
                    transaction=chance.randrange(2),
                ),
                encode_credit(chance.randrange(1, 4), chance.randrange(2**64)),
                encode_acknowledge(1, [(1, 2, 1)]),
            )
        )
    )
    for _ in range(chance.choice((0, 0, 1, 3))):
        frame[chance.randrange(len(frame))] = chance.randrange(256)
    if chance.random() < 0.1:
        del frame[chance.randrange(len(frame)) :]
    return bytes(frame)


@pytest.mark.parametrize("seed", range(4))
def test_the_router_serves_other_clients_whatever_one_client_sends(seed: int) -> None:
    chance = random.Random(seed)
    router = Router(queue("a", "orders.>", deliveries_max=2), message_bytes_max=100, unsettled_max=50)
    router.link(1)
    good = router.publisher(1, 500)
    for each in range(ROUNDS):
        link = 10 + each
        router.link(link)
        router.publisher(link, 600 + each % 3)
        router.flow(link, "a", chance.choice((0, 5, 2**60)))
        for _ in range(chance.randint(1, 4)):
            router.tell(Data(link, b"".join(rubbish(chance) for _ in range(chance.randint(1, 3)))))
        if chance.random() < 0.7:
            router.drop(link)
        router.publish(1, good, each + 1, message(str(each), "orders.good"))
        router.advance(chance.randrange(20))
        assert router.outcomes(1).get(each + 1) == 1
    assert all(is_record(payload) for _, payload in router.journal.records.values())
    assert router.restart().queued("a") == router.queued("a")


def test_damaged_records_are_refused_or_harmless() -> None:
    """Every record of a log with bytes changed: a record is checked completely before use."""
    chance = random.Random(1)
    router = Router(queue("a", "orders.>"))
    router.link(1)
    router.publish(1, router.publisher(1), 1, message("x"), message("y"))
    for _, payload in router.journal.records.values():
        for _ in range(300):
            damaged = bytearray(payload)
            for _ in range(chance.randint(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            is_record(bytes(damaged[: chance.randrange(len(damaged) + 1)]))
            is_record(bytes(damaged))
