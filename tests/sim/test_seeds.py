"""Whole plants under every fault, and checkers that find errors."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from penstock.base.counters import Cause
from penstock.base.errors import SimulationError
from penstock.middleware import (
    Collision,
    Deliver,
    DeliverBatch,
    LossReceipt,
    Publish,
    PublishBatch,
    PublisherConfig,
    StreamEnded,
)
from penstock.middleware.core import publisher as publishing
from penstock.middleware.core._requests import RequestGate
from penstock.middleware.core.events import ReceiverInstruction
from penstock.middleware.core.incoming_stream import IncomingStream
from penstock.middleware.core.publisher import _OutgoingStream
from penstock.middleware.core.receiver import Receiver
from penstock.sim import MiddlewarePlant, PlantOptions, StreamChecker, World, run_seed
from penstock.sim.datagram_node import Viewer
from penstock.wire import DatagramBatch, Packer, Packet

SEEDS = 50
SEEDS_PER_TEST = 10
SOAK_SEEDS = 3_000


def run_seeds(seeds: range, seconds: float = 2) -> None:
    for seed in seeds:
        run_seed(seed, seconds=seconds)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_PER_TEST))
def test_every_message_once_and_in_order_or_reported_lost(first: int) -> None:
    run_seeds(range(first, first + SEEDS_PER_TEST))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 60))
def test_many_more_seeds(first: int) -> None:
    run_seeds(range(first, first + 60), seconds=15)


def test_a_seed_replays_exactly() -> None:
    assert run_seed(11, seconds=3) == run_seed(11, seconds=3)
    assert run_seed(11, seconds=3).digest != run_seed(12, seconds=3).digest


def test_the_seeds_cover_every_kind_of_fault() -> None:
    """A simulator that never loses or crashes anything proves nothing."""
    summaries = [run_seed(seed, seconds=2) for seed in range(12)]
    for name in ("datagrams_lost", "nacks_sent", "repairs_sent", "packets_reported_lost", "crashes"):
        assert sum(getattr(each, name) for each in summaries) > 0, name


# Each sabotage breaks one promise of the product; a checker must detect the sabotage from outside.


def deliver_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IncomingStream._deliver

    def broken(self: IncomingStream, packet: Packet) -> Iterator[Any]:
        for answer in original(self, packet):
            yield answer
            if isinstance(answer, Deliver) and answer.sequence % 50 == 0:
                yield answer

    monkeypatch.setattr(IncomingStream, "_deliver", broken)


def forget_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IncomingStream._deliver

    def broken(self: IncomingStream, packet: Packet) -> Iterator[Any]:
        for answer in original(self, packet):
            if isinstance(answer, Deliver) and answer.sequence % 50 == 0:
                answer = msgspec.structs.replace(answer, messages=[])
            yield answer

    monkeypatch.setattr(IncomingStream, "_deliver", broken)


def lose_without_a_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IncomingStream._skip
    monkeypatch.setattr(
        IncomingStream,
        "_skip",
        lambda self, gap: (each for each in original(self, gap) if not isinstance(each, LossReceipt)),
    )


def never_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiver, "_request_repairs", lambda self, now_ns: [])
    monkeypatch.setattr(Receiver, "next_deadline_ns", lambda self: self._expiry_check_ns)


def forget_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receiver._end

    def broken(self: Receiver, stream: IncomingStream, cause: Cause) -> list[Any]:
        answers = original(self, stream, cause)
        self._positions.clear()
        return answers

    monkeypatch.setattr(Receiver, "_end", broken)


def end_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receiver._end

    def broken(self: Receiver, stream: IncomingStream, cause: Cause) -> list[Any]:
        *answers, ended = original(self, stream, cause)
        return [*answers, StreamEnded(ended.stream, ended.epoch, ended.next_sequence + 1, cause)]

    monkeypatch.setattr(Receiver, "_end", broken)


def change_the_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    class WrongPacker(Packer):
        def add(self, topic: Any, *rest: Any, **more: Any) -> list[bytes]:
            return super().add(topic + "x", *rest, **more)

    monkeypatch.setattr(publishing, "Packer", WrongPacker)


def publish_less_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _OutgoingStream.publish
    monkeypatch.setattr(
        _OutgoingStream,
        "publish",
        lambda self, event, now_ns: original(self, Publish(event.group, event.messages[:7]), now_ns),
    )


def shuffle_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _OutgoingStream.publish_batch

    def broken(self: Any, event: PublishBatch, now_ns: int) -> list[Any]:
        event.batch.rows = event.batch.rows[::-1].copy()
        return original(self, event, now_ns)

    monkeypatch.setattr(_OutgoingStream, "publish_batch", broken)


def take_gaps_for_smooth(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: IncomingStream) -> None:
        self.is_smooth = True
        if self.gaps:
            self.next_sequence = self.newest_sequence + 1

    monkeypatch.setattr(IncomingStream, "update_fast_path", broken)


def forget_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receiver.receive_rest

    def broken(self: Receiver, batch: DatagramBatch, messages: Any, now_ns: int) -> list[Any]:
        answers = original(self, batch, messages, now_ns)
        return answers if now_ns % 50 else [each for each in answers if not isinstance(each, DeliverBatch)]

    monkeypatch.setattr(Receiver, "receive_rest", broken)


def never_repair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_OutgoingStream, "repair", lambda self, sequence, source: [])


def give_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    original = IncomingStream._take_out_of_order

    def broken(self: IncomingStream, packet: Packet, now_ns: int) -> list[Any]:
        return original(self, packet, now_ns) + self.give_up(1, 2**64, Cause.NO_ANSWER)

    monkeypatch.setattr(IncomingStream, "_take_out_of_order", broken)


def keep_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, now_ns: int) -> list[Any]:
        self.keep_alive_deadline_ns = now_ns + 10**12
        return []

    monkeypatch.setattr(_OutgoingStream, "_keep_alive", broken)


def ask_like_mad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IncomingStream, "_retry_ns", lambda self, attempts: 100_000)


def lag_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    original = _OutgoingStream.publish

    def broken(self: Any, event: Publish, now_ns: int) -> list[Any]:
        late, self.late = getattr(self, "late", None), event
        return original(self, late, now_ns) if late else []

    monkeypatch.setattr(_OutgoingStream, "publish", broken)


def see_ghosts(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Receiver._end

    def broken(self: Receiver, stream: IncomingStream, cause: Cause) -> list[Any]:
        return [*original(self, stream, cause), Collision(stream.key, stream.epoch, stream.source, stream.source)]

    monkeypatch.setattr(Receiver, "_end", broken)


def never_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiver, "_expiry_ns", lambda self: 10**12)


def hold_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IncomingStream, "_overflow", lambda self: None)


def stay_with_the_first_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiver, "_follow", lambda self, stream, source: [])


def forget_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    class ForgetfulGate(RequestGate):
        def __init__(self, seed: int, **values: Any) -> None:
            self.fresh = lambda: RequestGate(seed, **values)

        def admits(self, data: Any, source: int, now_ns: int) -> bool:
            return self.fresh().admits(data, source, now_ns)

    monkeypatch.setattr(publishing, "RequestGate", ForgetfulGate)


@pytest.mark.parametrize(
    ("sabotage", "checker"),
    [(stay_with_the_first_source, "SourceChecker"), (forget_requests, "RequestChecker")],
)
def test_the_checkers_of_strangers_detect_every_sabotage(
    sabotage: Any, checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError, match=checker):
        run_seeds(range(30), seconds=4)


@pytest.mark.parametrize(
    "sabotage",
    [
        deliver_twice,
        forget_a_message,
        lose_without_a_receipt,
        never_ask,
        forget_positions,
        end_too_early,
        change_the_topic,
        publish_less_than_asked,
        shuffle_a_batch,
        take_gaps_for_smooth,
        forget_a_batch,
        never_repair,
        give_up_at_once,
        keep_quiet,
        ask_like_mad,
        lag_behind,
        see_ghosts,
        never_expire,
        hold_everything,
    ],
)
def test_the_checkers_detect_every_sabotage(sabotage: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        run_seeds(range(30), seconds=4)
    assert "Checker" in caught.value.what
    assert "penstock sim --scenario middleware --seed" in caught.value.hint


def test_a_quiet_network_needs_no_repair() -> None:
    # packets of a burst may overtake each other even here, and a receiver that joins live then misses the first one
    plant = MiddlewarePlant(World(5), PlantOptions(publisher=PublisherConfig(linger_us=0)))
    plant.start()
    plant.run(5_000_000_000)
    plant.finish()
    summary = plant.summary()
    assert summary.messages_delivered == len(plant.receivers) * summary.messages_published
    assert (summary.repairs_sent, summary.packets_reported_lost) == (0, 0)


def test_two_publishers_with_one_id_are_reported_by_every_receiver() -> None:
    reports = set[str]()

    class Listener(StreamChecker):
        def said(self, viewer: Viewer, instruction: ReceiverInstruction, now_ns: int) -> None:
            if isinstance(instruction, Collision):
                reports.add(viewer.name)

    plant = MiddlewarePlant(World(6), PlantOptions(publishers=2, receivers=3))
    plant.publishers[1].publisher_id = plant.publishers[0].publisher_id
    plant.checkers = [Listener()]
    plant.start()
    plant.run(3_000_000_000)
    assert reports == {"recv-1", "recv-2", "recv-3"}


@pytest.mark.parametrize("seconds", [0.3, 0.30740740734, 1.0000000001])
def test_every_duration_ends(seconds: float) -> None:
    assert run_seed(3, seconds=seconds).virtual_seconds >= seconds
