"""Helpers that drive a filter module's core by hand."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.base import parse_group
from penstock.filter.config import FilterConfig
from penstock.filter.core.events import (
    Attach,
    Attached,
    DatagramReceived,
    DatagramsReceived,
    Detach,
    Interests,
    Join,
    Leave,
    Opened,
    Send,
    Shut,
    StreamOver,
    StreamPosition,
    Tell,
    Tick,
    Unicast,
    Want,
)
from penstock.filter.core.ledger import Entry, IntakeCounts, Sent
from penstock.filter.core.module import FilterModule
from penstock.middleware import Address, ReceiverConfig, StreamKey
from penstock.wire import DatagramBatch, Packer, Packet, decode, encode_nack
from penstock.wire._authentication import strip_trailer
from unit.middleware_kit import NoRandomness

GROUP, OTHER_GROUP = parse_group("239.1.1.1"), parse_group("239.1.1.2")
PUBLISHER_ID = 42
KEY = StreamKey(PUBLISHER_ID, GROUP)
SOURCE: Address = ("10.0.0.1", 4_000)
MS = 1_000_000

Message = tuple[str, bytes]


def address_of(application: int) -> Address:
    return ("10.0.0.2", 5_000 + application)


def packets(
    *contents: Sequence[Message],
    first: int = 1,
    epoch: int = 1,
    group: int = GROUP,
    publisher_id: int = PUBLISHER_ID,
    flags: int = 0,
) -> list[bytes]:
    """One packet for each list of messages."""
    packer = Packer(publisher_id, group, epoch, first_sequence=first)
    made = []
    for messages in contents:
        for topic, payload in messages:
            assert packer.add(topic, payload) == []
        made.append(packer.flush(flags) or packer.empty(flags))
    return made


def stream(topics: str, *, first: int = 1, **more: Any) -> list[bytes]:
    """Per letter, a packet with one message on the topic of that letter; the payload is the packet's number."""
    numbered = enumerate(topics, start=first)
    return packets(*([(letter, str(number).encode())] for number, letter in numbered), first=first, **more)


class Harness:
    """A module and the packets that it sent to each recipient, in order. The sums of its accounts are checked after
    each step."""

    def __init__(self, module: FilterModule) -> None:
        self.module = module
        self.now_ns = 0
        self.joined: set[int] = set()
        self.consumers: dict[int, Opened] = {}
        self.attached: dict[int, Attached] = {}
        self.told: dict[int, list[Any]] = defaultdict(list)
        self.sent: dict[int, list[Packet]] = defaultdict(list)
        self.datagrams: dict[Address, list[bytes]] = defaultdict(list)
        self.unicast: dict[Address, list[Packet]] = defaultdict(list)
        self.others: list[Any] = []
        self.open: list[Entry] = []
        self.closed: list[Entry] = []

    def handle(self, event: Any) -> list[Any]:
        answers = self.module.handle(event, self.now_ns)
        for answer in answers:
            self._note(answer)
        entries = self.module.accounts()
        assert all(entry.adds_up for entry in entries), entries
        self.open = [entry for entry in entries if not entry.is_closed]
        self.closed += [entry for entry in entries if entry.is_closed]
        return answers

    def attach(self, application: int, *topics: str, groups: Sequence[int] = (), **more: Any) -> None:
        self.handle(Attach(application, address_of(application), **more))
        if topics:
            self.want(application, *topics, groups=groups)

    def want(self, application: int, *topics: str, **more: Any) -> None:
        self.handle(Want(application, add=[Interests(topics, **more)]))

    def unwant(self, application: int, *topics: str, **more: Any) -> None:
        self.handle(Want(application, remove=[Interests(topics, **more)]))

    def detach(self, application: int) -> None:
        self.handle(Detach(application))

    def take(self, data: Iterable[bytes], source: Address = SOURCE) -> None:
        for each in data:
            self.handle(DatagramReceived(each, source))

    def take_batch(self, data: Sequence[bytes], source: Address = SOURCE) -> None:
        batch = DatagramBatch(max(len(data), 1))
        for each in data:
            batch.append(each, source)
        self.handle(DatagramsReceived(batch))

    def tick(self, after_ns: int = 0) -> None:
        self.now_ns += after_ns
        self.handle(Tick())

    def nack(self, application: int, *ranges: tuple[int, int], key: StreamKey = KEY, epoch: int = 1) -> list[Packet]:
        """The packets that answered the application's request."""
        address = address_of(application)
        before = len(self.unicast[address])
        request = encode_nack(key.publisher_id, key.group, epoch, ranges)
        self.handle(DatagramReceived(request, address))
        return self.unicast[address][before:]

    def got(self, application: int) -> list[tuple[int, int, str]]:
        """Number, gap and topics of the packets sent to the application's consumer so far; the log of them is
        cleared."""
        consumer = self.attached[application].consumer
        found = [(each.sequence, each.gap, "".join(message.topic for message in each)) for each in self.sent[consumer]]
        self.sent[consumer] = []
        return found

    def intake(self, key: StreamKey = KEY) -> IntakeCounts:
        (found,) = (each for each in self.open if isinstance(each, IntakeCounts) and each.stream == key)
        return found

    def account(self, name: str, key: StreamKey = KEY) -> Sent:
        (found,) = (each for each in self.open if isinstance(each, Sent) and name in each.applications)
        assert found.stream == key
        return found

    def positions(self, application: int) -> list[StreamPosition]:
        return [each for each in self.told[application] if isinstance(each, StreamPosition)]

    def ends(self, application: int) -> list[StreamOver]:
        return [each for each in self.told[application] if isinstance(each, StreamOver)]

    def _note(self, answer: Any) -> None:
        match answer:
            case Send(outbox):
                for consumer, data in outbox.packets():
                    assert consumer in self.consumers
                    self.sent[consumer].append(decode(data))
            case Unicast(destination, data):
                self.datagrams[destination].append(data)
                self.unicast[destination].append(decode(strip_trailer(data)))
            case Tell(application, what):
                self.told[application].append(what)
            case Opened():
                assert answer.consumer not in self.consumers
                self.consumers[answer.consumer] = answer
            case Shut(consumer):
                del self.consumers[consumer]
            case Attached():
                self.attached[answer.application] = answer
            case Join(group):
                assert group not in self.joined
                self.joined.add(group)
            case Leave(group):
                self.joined.remove(group)
            case _:
                self.others.append(answer)


def harness(
    *, receiver: dict[str, Any] | None = None, models: Sequence[Any] = (), group_map: Any = None, **config: Any
) -> Harness:
    """A harness of a module that requests missing packets at its next Tick."""
    network = ReceiverConfig(**{"nack_delay_us": 0, **(receiver or {})})
    settings = FilterConfig(**{"applications_max": 16, "conditions_max": 32, "receiver": network, **config})
    return Harness(
        FilterModule(
            settings,
            NoRandomness(),
            groups=[GROUP, OTHER_GROUP],
            models=models,
            group_map=group_map,
            keeps_books=True,
        )
    )
