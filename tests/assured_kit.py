"""A message router's core with a journal in memory. Its disk answers at once, or when the test orders it."""

import random
from collections import defaultdict

import numpy
from msgspec.structs import replace

from penstock.assured.config import EndpointConfig, RouterConfig, Want
from penstock.assured.core.router.events import (
    Append,
    Data,
    EndLink,
    Event,
    Instruction,
    LinkClosed,
    LinkOpened,
    ReadRecords,
    RecordsRead,
    RemoveBefore,
    Replay,
    RequestReceived,
    SendData,
    SendMessage,
    Start,
    Stored,
)
from penstock.assured.core.router.router import MessageRouter
from penstock.assured.wire.control import (
    Begin,
    Commit,
    CreateEndpoint,
    FlowOpened,
    OpenFlow,
    OpenPublisher,
    PublisherOpened,
)
from penstock.assured.wire.frames import (
    Acknowledge,
    Deliver,
    Delivered,
    Published,
    decode_frames,
    encode_credit,
    encode_publish,
    encode_settle,
)
from penstock.base.core import Tick
from penstock.journal.core._log import RECORD_DTYPE

WALL_NS = 1_700_000_000_000_000_000


class Seeded:
    def __init__(self, seed: int = 1) -> None:
        self._random = random.Random(seed)

    def below(self, limit: int) -> int:
        return self._random.randrange(limit)


class MemoryJournal:
    """Records by their numbers; those up to `durable` survive a crash."""

    def __init__(self) -> None:
        self.records: dict[int, tuple[int, bytes]] = {}
        self.next_sequence = 1
        self.durable = 0

    def append(self, event: Append) -> None:
        assert event.first == self.next_sequence
        for offset, size, stamp in zip(event.offsets, event.sizes, event.timestamps_ns, strict=True):
            self.records[self.next_sequence] = (int(stamp), event.data[offset : offset + size])
            self.next_sequence += 1
        assert event.through == self.next_sequence - 1

    def crash(self) -> None:
        self.records = {number: record for number, record in self.records.items() if number <= self.durable}
        self.next_sequence = self.durable + 1

    def remove_before(self, sequence: int) -> None:
        self.records = {number: record for number, record in self.records.items() if number >= sequence}

    def batch(self, numbers: list[int]) -> tuple[bytes, numpy.ndarray]:
        data = bytearray()
        rows = numpy.zeros(len(numbers), RECORD_DTYPE)
        for index, number in enumerate(numbers):
            stamp, payload = self.records[number]
            rows[index] = (number, stamp, 0, len(data), len(payload))
            data += payload
        return bytes(data), rows


class Router:
    def __init__(self, *endpoints: EndpointConfig, journal: MemoryJournal | None = None, **settings: object) -> None:
        settings.setdefault("name", "r")
        models = settings.pop("models", None)
        self.config = RouterConfig(endpoints=endpoints, **settings)  # type: ignore[arg-type]
        self.journal = journal or MemoryJournal()
        self.core = MessageRouter(self.config, Seeded(), models)  # type: ignore[arg-type]
        self.now_ns = 0
        self.is_storing = True
        self.is_reading = True
        self.said: list[Instruction] = []
        self.reads: list[ReadRecords] = []
        self.sent: dict[int, list[object]] = defaultdict(list)
        self.request = 0
        if self.journal.records:
            self.core.handle(Replay(*self.journal.batch(sorted(self.journal.records))), 0)
        self.tell(Start(self.journal.next_sequence, WALL_NS))

    def tell(self, event: Event) -> list[Instruction]:
        found = self.core.handle(event, self.now_ns)
        self.said += found
        for instruction in found:
            match instruction:
                case Append():
                    self.journal.append(instruction)
                case SendData(link, data):
                    self.sent[link] += decode_frames(data)
                case RemoveBefore(sequence):
                    self.journal.remove_before(sequence)
                case ReadRecords():
                    self.reads.append(instruction)
        if self.is_storing and self.journal.durable < self.journal.next_sequence - 1:
            self.store()
        if self.is_reading and self.reads:
            self.read()
        return found

    def store(self) -> None:
        self.journal.durable = self.journal.next_sequence - 1
        self.tell(Stored(self.journal.durable))

    def read(self) -> None:
        reads, self.reads = self.reads, []
        for each in reads:
            first = min(self.journal.records, default=self.journal.next_sequence)
            if len(each.sequences):
                numbers = [int(number) for number in each.sequences if int(number) in self.journal.records]
            else:
                numbers = [
                    number
                    for number, (stamp, _) in sorted(self.journal.records.items())
                    if number > each.after and stamp >= each.time_ns and number <= self.journal.durable
                ][:7]
            self.tell(RecordsRead(each.request, *self.journal.batch(numbers), first))

    def advance(self, ms: float) -> None:
        self.now_ns += int(ms * 1e6)
        self.tell(Tick())

    def restart(self, **settings: object) -> "Router":
        """Simulate a crash: records that were not on the disk are lost."""
        self.journal.crash()
        merged = {name: getattr(self.config, name) for name in self.config.__struct_fields__} | settings
        endpoints = merged.pop("endpoints")
        return Router(*endpoints, journal=self.journal, **merged)

    # Clients

    def link(self, number: int, name: str = "client", **rights: object) -> int:
        self.tell(LinkOpened(number, name, **rights))  # type: ignore[arg-type]
        return number

    def ask(self, request_type: type, link: int, *arguments: object) -> object:
        """The answer, with request number 0."""
        self.request += 1
        self.tell(RequestReceived(link, request_type(self.request, *arguments)))
        messages = [each.message for each in self.said if isinstance(each, SendMessage)]
        answers = [each for each in messages if getattr(each, "number", 0) == self.request]
        return replace(answers[-1], number=0) if answers else None

    def publisher(self, link: int, publisher: int = 77) -> int:
        answer = self.ask(OpenPublisher, link, publisher)
        assert isinstance(answer, PublisherOpened)
        return answer.handle

    def publish(self, link: int, handle: int, first: int, *messages: Published, transaction: int = 0) -> None:
        self.tell(Data(link, encode_publish(handle, first, messages, transaction=transaction)))

    def flow(self, link: int, endpoint: str, credit: int = 1_000) -> int:
        answer = self.ask(OpenFlow, link, endpoint, credit)
        assert isinstance(answer, FlowOpened), answer
        return answer.handle

    def credit(self, link: int, flow: int, total: int) -> None:
        self.tell(Data(link, encode_credit(flow, total)))

    def settle(self, link: int, flow: int, *ids: int, what: int = 1, transaction: int = 0) -> None:
        runs = [(each, each, what) for each in sorted(ids)]
        self.tell(Data(link, encode_settle(flow, runs, transaction=transaction)))

    def create(self, config: EndpointConfig, link: int = 1, *arguments: object) -> object:
        return self.ask(CreateEndpoint, link, config, *arguments)

    def begin(self, link: int, handle: int, number: int) -> object:
        return self.ask(Begin, link, handle, number)

    def commit(self, link: int, handle: int, number: int) -> object:
        return self.ask(Commit, link, handle, number)

    def drop(self, link: int) -> None:
        self.tell(LinkClosed(link))

    # Messages to clients since the last call

    def delivered(self, link: int) -> list[Delivered]:
        found = [message for frame in self.sent[link] if isinstance(frame, Deliver) for message in frame.messages]
        self.sent[link] = [frame for frame in self.sent[link] if not isinstance(frame, Deliver)]
        return found

    def outcomes(self, link: int) -> dict[int, int]:
        """The outcomes of acknowledged messages, by number."""
        frames = [frame for frame in self.sent[link] if isinstance(frame, Acknowledge)]
        self.sent[link] = [frame for frame in self.sent[link] if not isinstance(frame, Acknowledge)]
        return {number: run.what for frame in frames for run in frame.runs for number in range(run.first, run.last + 1)}

    def ended(self, link: int) -> EndLink | None:
        return next((each for each in self.said if isinstance(each, EndLink) and each.link == link), None)

    def queued(self, endpoint: str) -> int:
        found = self.core.endpoints.get(endpoint)
        assert found is not None
        return self.core.tables.endpoint_numbers(found.number)["messages"]


def queue(name: str, *topics: str, **settings: object) -> EndpointConfig:
    wants = (Want(topics=topics),) if topics else ()
    return EndpointConfig(name=name, wants=wants, **settings)  # type: ignore[arg-type]


def message(text: str = "x", topic: str = "orders.new", **settings: int) -> Published:
    return Published(topic.encode(), text.encode(), **settings)


def texts(delivered: list[Delivered]) -> list[str]:
    return [each.payload.decode() for each in delivered]
