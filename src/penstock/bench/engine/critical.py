"""The critical class with eight consumers in their own processes, compared with pyzmq PUB/SUB.

Measures latency, throughput, and the effect of one stopped consumer on the others.
"""

import os
import signal
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import numpy

from penstock.base.clock import NS_PER_SECOND, SystemRandomness, random_bytes
from penstock.bench.engine.consumers import CONSUMERS, DRAIN_EVERY_NS, Crowd, crowd
from penstock.bench.harness import Result, result
from penstock.bench.transports import ALL_CORES, check, now, pin, stamp
from penstock.engine import EVENT_SIZE_MAX, DistributionEngine, EngineConfig
from penstock.engine.core.events import Attach, Overrun, Sinks, Subscribe
from penstock.engine.core.kernel._event import EVENT_HEAD_SIZE
from penstock.middleware.core._inorder import InOrder, StreamCursor
from penstock.model import shipped
from penstock.net.live.handover import Handover
from penstock.shm import RingWriter
from penstock.wire import DatagramBatch, MessageBatch, Packer

RATE = 50_000
ROUNDS = 9
MESSAGES = 4_000
WARM_UP = 500
FLOOD = 40_000
BATCH = 1_000
RING_BYTES = 16 * 1024 * 1024
STOPPED = 3
TOPICS = [b"md.us.eq.S%03d.quote" % number for number in range(100)]
MODEL = shipped("quote")
ROW_SIZE = EVENT_HEAD_SIZE + MODEL.record_size

WHERE = (
    f"{CONSUMERS} consumers in separate processes on {len(ALL_CORES)} cores, quotes of {MODEL.record_size} bytes "
    f"of {len(TOPICS)} items"
)
PACED = (
    f"{WHERE}; {RATE} updates/s by an absolute schedule; the measured consumer spins in Python on its core, the others "
    f"share the producer's core and drain every {DRAIN_EVERY_NS // 1_000_000} ms; from before the publishing call to "
    f"the return of the reading call; median of {ROUNDS} rounds of {MESSAGES}"
)
FLOODED = (
    f"{WHERE}; {FLOOD} updates at full speed, in batches of {BATCH} (pyzmq: one by one), read in batches of all "
    f"available events, from the first publishing call to the last message read, all messages counted, no overrun; "
    f"median of {ROUNDS} rounds"
)
IN_TURNS = "with one consumer stopped (SIGSTOP), divided by that without, in alternating rounds"

Publish = Callable[[bytes, bytearray], object]


class Stand:
    """A producer and its consumers. `publish_batch` publishes BATCH messages, `restart` restarts a consumer's ring. A
    peer without `restart` may lose messages, so arrivals are counted.
    """

    def __init__(
        self,
        publish: Publish,
        publish_batch: Callable[[], object],
        consumers: Crowd,
        restart: Callable[[int], object] | None = None,
    ) -> None:
        self._publish = publish
        self._publish_batch = publish_batch
        self._restart = restart
        self._is_lossless = restart is not None
        self.consumers = consumers
        self._record = bytearray(MODEL.record_size)

    def begin(self) -> None:
        """Wait until everything before the first message has been read."""
        for topic in TOPICS:
            self._publish(topic, self._record)
        self.consumers.tell("skip")
        self.consumers.answers()

    def latencies(self) -> list[int]:
        """Return the latencies of one round."""
        count = WARM_UP + MESSAGES
        self.consumers.tell("pace", count)
        interval_ns, publish, record = NS_PER_SECOND // RATE, self._publish, self._record
        due = now()
        for number in range(count):
            due += interval_ns
            while now() < due:
                pass
            stamp.pack_into(record, 0, now())
            publish(TOPICS[number % len(TOPICS)], record)
        taken: list[int] = self.consumers.answers()[0]
        return taken[WARM_UP:]

    def flood(self) -> tuple[float, float]:
        """Return the messages per second that the producer published, and that all consumers together received."""
        self.consumers.tell("flood", FLOOD)
        started = now()
        for _ in range(FLOOD // BATCH):
            self._publish_batch()
        published = now()
        answers = self.consumers.answers()
        taken, last = sum(count for count, _ in answers), max(at for _, at in answers)
        check(not self._is_lossless or taken == FLOOD * len(answers), "messages are missing")
        return FLOOD * NS_PER_SECOND / (published - started), taken * NS_PER_SECOND / (last - started)

    @contextmanager
    def one_stopped(self) -> Iterator[None]:
        """Stop one consumer; afterwards it continues with a restarted ring."""
        os.kill(self.consumers.pids[STOPPED], signal.SIGSTOP)
        self.consumers.stopped.add(STOPPED)
        try:
            yield
        finally:
            os.kill(self.consumers.pids[STOPPED], signal.SIGCONT)
            assert self._restart is not None
            self._restart(STOPPED)
            self.consumers.restart(STOPPED)
            self.begin()


def run() -> Iterator[Result]:
    whole, less, floods, stopped = [], [], [], []
    with engine_stand() as stand:
        for _ in range(ROUNDS):
            whole.append(stand.latencies())
            floods.append(stand.flood())
            with stand.one_stopped():
                less.append(stand.latencies())
                stopped.append(stand.flood())
    with pyzmq_stand() as peer:
        theirs = [peer.latencies() for _ in range(ROUNDS)]
        their_floods = [peer.flood() for _ in range(ROUNDS)]
    medians = ", ".join(f"{numpy.percentile(each, 50):.0f}" for each in sorted(whole, key=numpy.median))
    how = f"{PACED}; medians of the rounds: {medians}"
    yield _result("critical_ns_p50", _p50(whole), "ns", "pyzmq PUB/SUB over ipc", _p50(theirs), how)
    ours_taken, theirs_taken = (statistics.median(taken for _, taken in each) for each in (floods, their_floods))
    yield _result("deliveries_per_s_8", ours_taken, "1/s", "pyzmq PUB/SUB over ipc", theirs_taken, FLOODED)
    rates = [statistics.median(given for given, _ in each) for each in (stopped, floods)]
    how = f"{FLOODED}; the producer's updates/s {IN_TURNS}"
    yield _result("stopped_consumer_ratio", rates[0] / rates[1], "ratio", "no consumer stopped", 1, how)
    how = f"{PACED}; the median {IN_TURNS}"
    yield _result("stopped_consumer_p50_ratio", _p50(less) / _p50(whole), "ratio", "no consumer stopped", 1, how)


def _p50(rounds: list[list[int]]) -> float:
    return statistics.median(float(numpy.percentile(each, 50)) for each in rounds)


def _result(metric: str, value: float, unit: str, against: str, against_value: float, conditions: str) -> Result:
    return result("engine", metric, value, unit, against=against, against_value=against_value, conditions=conditions)


@contextmanager
def engine_stand() -> Iterator[Stand]:
    path = f"@penstock-bench-{random_bytes(8).hex()}"
    engine = DistributionEngine(EngineConfig(), SystemRandomness(), models=[MODEL])
    with ExitStack() as stack:
        handover = stack.enter_context(Handover(path))
        for number in range(CONSUMERS):
            ring = stack.enter_context(RingWriter.create(RING_BYTES, EVENT_SIZE_MAX))
            handover.offer(str(number), ring.segment)
            # the measured consumer is written last, after all others
            place = CONSUMERS - 1 - number
            engine.handle(Attach(place, f"consumer-{number}", Sinks(ring=ring)), 0)
        for place in range(CONSUMERS):
            engine.handle(Subscribe(place, 1, ["md.>"]), 0)

        batch = _batch()
        stand = Stand(
            lambda topic, record: engine.publish(topic, MODEL, record, 0),
            lambda: engine.distribute(batch, 0),
            stack.enter_context(crowd("ring", path, ROW_SIZE)),
            lambda number: engine.handle(Overrun(CONSUMERS - 1 - number, engine.kernel.items.number), 0),
        )
        stand.begin()
        pin(0)
        stack.callback(pin, 0, is_pinned=False)
        yield stand


def _batch() -> MessageBatch:
    """Return quotes of all items in the form of received messages."""
    packer = Packer(1, 1, 1)
    packets: list[bytes] = []
    for number in range(BATCH):
        topic = TOPICS[number % len(TOPICS)].decode()
        packets += packer.add(topic, bytes(MODEL.record_size), model_id=MODEL.id, model_version=MODEL.version)
    packets += [packet for packet in [packer.flush()] if packet is not None]
    datagrams = DatagramBatch(len(packets))
    for packet in packets:
        datagrams.append(packet, ("127.0.0.1", 1))
    in_order, cursor = InOrder(1), StreamCursor()
    cursor.publisher_id = cursor.group = cursor.epoch = cursor.next_sequence = 1
    cursor.is_smooth, cursor.source_key = True, datagrams.source_key(0)
    in_order.add(cursor)
    messages = in_order.begin(datagrams, 0)
    check(messages is not None and len(messages) == BATCH, "the messages were not taken")
    assert messages is not None
    return messages


@contextmanager
def pyzmq_stand() -> Iterator[Stand]:
    import zmq

    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context, context.socket(zmq.PUB) as socket:
        path = f"{folder}/publisher"
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        socket.bind(f"ipc://{path}")
        with crowd("pyzmq", path, ROW_SIZE) as consumers:
            quotes = [bytes(MODEL.record_size)] * BATCH
            stand = Stand(
                lambda topic, record: socket.send(record), lambda: [socket.send(each) for each in quotes], consumers
            )
            stand.begin()
            yield stand
