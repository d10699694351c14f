"""Random frames from the other router: the link ends, or they are accepted; the log stays readable."""

import random

import pytest

from assured_kit import MemoryJournal
from paired_kit import Router, connect, exchange
from penstock.assured.config import EndpointConfig, Want
from penstock.assured.core.pair.protocol import PeerFrame, SwitchHere
from penstock.assured.core.router._records import is_record
from penstock.assured.core.router.events import Data, LinkClosed, LinkOpened, RequestReceived
from penstock.assured.wire._layout import KIND_CONTROL
from penstock.assured.wire.control import Begin, Commit, OpenFlow, OpenPublisher, Rollback
from penstock.assured.wire.frames import Deliver, Published, encode_publish, encode_settle
from penstock.base.errors import PenstockError

ROUNDS = 60
SOAK_ROUNDS = 3_000
EDGES = (0, 1, 8, 0x18, 0x7FFF_FFFF, 0xFFFF_FFF8, 0xFFFF_FFFF)
OPTIONS = {
    "matched there": {"matching": "secondary"},
    "matched here": {"matching": "primary", "transactions": "at_commit"},
}


def damaged(frame: bytes, chance: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(chance.choice((1, 1, 2, 5))):
        at = chance.randrange(len(changed))
        match chance.randrange(5):
            case 0:
                changed[at] = chance.randrange(256)
            case 1:
                field = chance.choice((*EDGES, len(changed), len(changed) - at))
                changed[at // 4 * 4 : at // 4 * 4 + 4] = field.to_bytes(4, "little")
            case 2 if len(changed) > 8:
                del changed[max(1, at // 8 * 8) :]
            case 3:
                changed += changed[at // 8 * 8 :]
            case _:
                changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


def queue(name: str, topic: str, **settings: object) -> EndpointConfig:
    return EndpointConfig(name=name, wants=(Want(topics=(topic,)),), **settings)  # type: ignore[arg-type]


class Client:
    """Publishes and consumes at a router that may not be active and then refuses."""

    def __init__(self, router: Router, chance: random.Random) -> None:
        self.router = router
        self.chance = chance
        self.link = chance.randrange(10, 2**31)
        self.publisher = chance.choice((77, 88))
        self.transaction = 0
        router.tell(LinkOpened(self.link, "client"))
        router.tell(RequestReceived(self.link, OpenPublisher(self.link, self.publisher)))
        router.tell(RequestReceived(self.link, OpenFlow(self.link + 1, "q", 100)))
        opened = router.answers.get(self.link)
        self.handle = getattr(opened, "handle", 0)
        self.number = getattr(opened, "highest", 0)

    def act(self) -> None:
        match self.chance.randrange(4):
            case 0:
                self.transaction += 1
                self.router.tell(RequestReceived(self.link, Begin(3, self.handle, self.transaction)))
                self._publish(self.transaction)
                self._settle(self.transaction)
                end = self.chance.choice((Commit, Commit, Rollback))
                self.router.tell(RequestReceived(self.link, end(4, self.handle, self.transaction)))
            case 1:
                self._settle(0)
            case _:
                self._publish(0)

    def leave(self) -> None:
        self.router.tell(LinkClosed(self.link))
        self.router.sent.clear()

    def _publish(self, transaction: int) -> None:
        contents = [self.chance.randbytes(self.chance.randrange(300)) for _ in range(self.chance.randint(1, 4))]
        messages = [Published(self.chance.choice((b"a.x", b"b.x", b"c")), each, flags=1) for each in contents]
        data = encode_publish(self.handle, self.number + 1, messages, transaction=transaction)
        self.number += len(messages)
        self.router.tell(Data(self.link, data))

    def _settle(self, transaction: int) -> None:
        for frame in self.router.sent:
            if isinstance(frame, Deliver):
                for each in frame.messages:
                    run = (each.id, each.id, self.chance.choice((1, 1, 2, 3)))
                    self.router.tell(Data(self.link, encode_settle(frame.flow, [run], transaction=transaction)))
        self.router.sent.clear()


def converse(one: Router, other: Router, chance: random.Random) -> None:
    """Exchange frames until one router ends the link or both are silent."""
    one.ended.clear()
    other.ended.clear()
    while (one.frames or other.frames) and not one.ended and not other.ended:
        for here, there in ((one, other), (other, one)):
            while here.frames and not there.ended:
                frame = here.frames.pop(0)
                is_damaged = chance.random() < (0.2 if frame[0] < KIND_CONTROL else 0.02)
                there.tell(PeerFrame(there.link, damaged(frame, chance) if is_damaged else frame))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("options", OPTIONS)
def test_the_log_stays_readable_whatever_the_other_router_sends(options: str, seed: int, soak: bool) -> None:
    chance = random.Random(f"{options} {seed}")
    endpoints = (
        queue("q", "a.>", replication="synchronous", deliveries_max=2),
        queue("also", "*.x", replication="asynchronous"),
        queue("here", "a.>"),
    )
    routers = [Router(name, *endpoints, pair=OPTIONS[options]) for name in "ab"]
    damages = 0
    for number in range(1, SOAK_ROUNDS if soak else ROUNDS):
        connect(*routers, frames_max=0, link=number)
        if not any(each.pair.is_active for each in routers) or chance.random() < 0.1:
            chance.choice(routers).tell(SwitchHere(is_forced=True))
        converse(*routers, chance)
        client = Client(next((each for each in routers if each.pair.is_active), routers[0]), chance)
        for _ in range(chance.randrange(8)):
            client.act()
            converse(*routers, chance)
        client.leave()
        damages += any(each.ended for each in routers)
        if chance.random() < 0.2:
            at = chance.randrange(2)
            assert all(is_record(payload) for _, payload in routers[at].journal.records.values())
            routers[at] = routers[at].restart()
    assert damages
    routers = [each.restart() for each in routers]
    connect(*routers, link=1)
    exchange(*routers)


def test_an_invented_log_is_refused_or_read() -> None:
    """Records with correct checksums and wrong contents."""
    chance = random.Random(3)
    one, other = (Router(name, queue("q", "a.>", replication="synchronous")) for name in "ab")
    connect(one, other)
    client = Client(one, chance)
    for _ in range(20):
        client.act()
        exchange(one, other)
    refused = 0
    for _ in range(300):
        journal = MemoryJournal()
        for number, (stamp, payload) in other.journal.records.items():
            journal.records[number] = (stamp, damaged(payload, chance) if chance.random() < 0.1 else payload)
        journal.next_sequence = other.journal.next_sequence
        try:
            Router("b", journal=journal)
        except PenstockError:
            refused += 1
    assert 0 < refused < 300
