"""Authentic datagrams that an attacker records and sends again: they change neither the source nor the expiry of a
stream."""

import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.filter.config import FilterConfig
from penstock.filter.core.events import StreamPosition
from penstock.filter.core.module import FilterModule
from penstock.middleware import (
    Address,
    Collision,
    DatagramReceived,
    DatagramsReceived,
    Deliver,
    DeliverBatch,
    Expect,
    LossReceipt,
    Receiver,
    ReceiverConfig,
    StreamEnded,
    StreamStarted,
    Unicast,
)
from penstock.middleware.core import receiver as receiving
from penstock.wire import Authenticator, DatagramBatch, PacketFlag, decode, encode_gone
from penstock.wire._authentication import strip_trailer
from unit.authentication_kit import authentic, scope
from unit.filter_module_kit import Harness
from unit.middleware_kit import GROUP, KEY, MS, PUBLISHER_ID, SOURCE, NoRandomness, of, packets

STRANGER: Address = ("10.0.0.66", 6_666)
FILTER: Address = ("10.0.0.7", 7_000)
EXPIRY_NS = 5_000 * MS
BATCH = DatagramBatch(64)  # one for all: the numbers of sources belong to one batch


def made(count: int, *, first: int = 1, epoch: int = 1, flags: int = 0) -> list[bytes]:
    return [authentic(each) for each in packets(count, first=first, epoch=epoch, flags=flags)]


def receiver(*, only_expected: bool = False, epochs: int = 1, **config: object) -> Receiver:
    chosen = ReceiverConfig(nack_delay_us=0, **config)  # type: ignore[arg-type]
    authenticator = Authenticator([scope(last=epochs)])
    return Receiver(chosen, NoRandomness(), authenticator=authenticator, only_expected=only_expected)


def take(
    core: Receiver, data: list[bytes], now_ns: int = 0, source: Address = SOURCE, *, in_batch: bool = True
) -> list[object]:
    if not in_batch:
        return [answer for each in data for answer in core.handle(DatagramReceived(each, source), now_ns)]
    BATCH.clear()
    for each in data:
        BATCH.append(each, source)
    answers: list[object] = []
    for answer in core.handle(DatagramsReceived(BATCH), now_ns):
        answers += answer.one_by_one() if isinstance(answer, DeliverBatch) else [answer]
    return answers


def numbers(answers: list[object]) -> list[int]:
    return [each.sequence for each in of(Deliver, answers)]


def dropped(core: Receiver) -> dict[str, int]:
    return core.counters.by_cause("packets_dropped")


@pytest.mark.spec("AUTH-1", "AUTH-4")
@pytest.mark.parametrize("in_batch", [False, True])
def test_a_stream_that_began_with_a_recorded_packet_follows_its_publisher(in_batch: bool) -> None:
    core = receiver()
    old, new = made(3), made(3, first=4)
    take(core, old[:1], source=STRANGER, in_batch=in_batch)
    answers = take(core, old[1:] + new, in_batch=in_batch)
    assert numbers(answers) == [2, 3, 4, 5, 6]
    assert of(Collision, answers) == []
    assert [each.source for each in core.streams()] == [SOURCE]
    assert Cause.ID_COLLISION not in dropped(core)
    assert core.counters["stream_sources_changed"] == 1


@pytest.mark.spec("AUTH-1")
def test_repairs_are_requested_from_the_publisher_and_not_from_the_attacker() -> None:
    core = receiver()
    take(core, made(1), source=STRANGER)
    take(core, made(1, first=3))
    (request,) = of(Unicast, core.handle(Tick(), 2 * MS))
    assert request.destination == SOURCE


@pytest.mark.spec("AUTH-1", "AUTH-4")
@pytest.mark.parametrize("source", [STRANGER, SOURCE])
@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("flags", [0, int(PacketFlag.REPAIR), int(PacketFlag.GOODBYE)])
def test_recorded_packets_do_not_keep_a_stream_alive(source: Address, in_batch: bool, flags: int) -> None:
    core = receiver()
    take(core, made(3))
    now_ns, answers = 0, list[object]()
    while core.streams():
        now_ns += 100 * MS
        assert now_ns <= 2 * EXPIRY_NS
        answers += take(core, made(3, flags=flags), now_ns, source, in_batch=in_batch)
        answers += core.handle(Tick(), now_ns)
    assert [each.cause for each in of(StreamEnded, answers)] == [Cause.EXPIRED]
    assert numbers(answers) == []
    assert take(core, made(3), now_ns, source, in_batch=in_batch) == []
    assert dropped(core).keys() == {Cause.DUPLICATE}


@pytest.mark.spec("AUTH-1")
def test_a_missing_packet_is_accepted_from_any_address_and_the_source_stays() -> None:
    core = receiver()
    take(core, [*made(1), *made(1, first=3)])
    answers = take(core, made(1, first=2), source=STRANGER)
    assert numbers(answers) == [2, 3]
    assert [each.source for each in core.streams()] == [SOURCE]
    # newer, but reported by the attacker itself as a repetition
    take(core, made(1, first=5, flags=PacketFlag.REPAIR), source=STRANGER)
    assert [each.source for each in core.streams()] == [SOURCE]
    gone = authentic(encode_gone(PUBLISHER_ID, GROUP, 1, [(4, 4)]))
    (lost,) = of(LossReceipt, take(core, [gone], source=STRANGER))
    assert (lost.first, lost.last, lost.cause) == (4, 4, Cause.GONE)


@pytest.mark.spec("AUTH-1")
def test_two_senders_of_new_packets_are_reported_once() -> None:
    core = receiver()
    answers: list[object] = []
    for number in range(1, 9):
        answers += take(core, made(1, first=number), source=SOURCE if number % 2 else STRANGER)
    assert numbers(answers) == list(range(1, 9))
    assert of(Collision, answers) == [Collision(KEY, 1, SOURCE, STRANGER)]
    assert core.counters["stream_sources_changed"] == 7


@pytest.mark.spec("AUTH-1", "AUTH-2")
def test_recorded_packets_of_an_older_epoch_are_counted_and_not_reported() -> None:
    core = receiver(epochs=2)
    old = made(3)
    take(core, old)
    take(core, made(3, epoch=2), MS)
    for step in range(1, 4):
        assert take(core, old, step * EXPIRY_NS // 4, STRANGER) == []
    assert dropped(core) == {Cause.STALE_EPOCH: 9}
    assert [(each.epoch, each.source, each.heard_ns) for each in core.streams()] == [(2, SOURCE, MS)]


@pytest.mark.spec("AUTH-1")
@pytest.mark.parametrize("in_batch", [False, True])
def test_behind_a_filter_the_filters_address_identifies_the_stream(in_batch: bool) -> None:
    core = receiver(only_expected=True)
    assert core.in_order.authenticator is not None
    core.in_order.authenticator.trust({FILTER: ()})
    core.handle(Expect(KEY, 1, 1, FILTER), 0)
    assert take(core, made(1), source=STRANGER, in_batch=in_batch) == []
    answers = take(core, packets(2), source=FILTER, in_batch=in_batch)
    assert [type(each) for each in answers] == [StreamStarted, Deliver, Deliver]
    assert numbers(take(core, made(1, first=3), source=STRANGER, in_batch=in_batch)) == []
    assert [each.source for each in core.streams()] == [FILTER]
    assert dropped(core) == {Cause.ID_COLLISION: 2}


@pytest.mark.spec("AUTH-1")
def test_applications_that_repair_themselves_learn_the_address_of_the_publisher() -> None:
    config = FilterConfig(
        applications_max=16, conditions_max=32, repair="receivers", receiver=ReceiverConfig(nack_delay_us=0)
    )
    authenticator = Authenticator([scope()])
    module = Harness(FilterModule(config, NoRandomness(), groups=[GROUP], authenticator=authenticator))
    module.attach(1, "t")
    module.take(made(1), source=STRANGER)
    module.take(made(2, first=2))
    told = [each for each in module.told[1] if isinstance(each, StreamPosition)]
    assert [(each.next_sequence, each.source) for each in told] == [(1, STRANGER), (1, SOURCE)]


def test_without_keys_copies_do_not_keep_a_stream_alive_either() -> None:
    core = Receiver(ReceiverConfig(), NoRandomness())
    take(core, packets(3))
    take(core, packets(3), EXPIRY_NS // 2)
    assert [each.heard_ns for each in core.streams()] == [0]


@pytest.mark.spec("AUTH-3")
def test_requests_are_numbered_and_a_requester_that_used_up_its_numbers_is_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core = receiver()
    monkeypatch.setattr(receiving, "REQUEST_NUMBER_MAX", 2)
    core._request_number = 2
    take(core, made(1))
    asked = []
    for now_ns, first in enumerate((3, 5, 7), start=1):
        take(core, made(1, first=first), now_ns)
        (request,) = of(Unicast, core.handle(Tick(), now_ns))
        packet = decode(strip_trailer(request.data))
        asked.append((packet.sequence, packet.gap, packet.ranges))
        take(core, made(1, first=first - 1), now_ns)
    assert asked == [(1, 1, [(2, 2)]), (1, 2, [(4, 4)]), (1, 1, [(6, 6)])]
