"""Repair requests are limited by source and in total, and answered in slices between which others publish."""

import pytest

from penstock.base.core import Tick
from penstock.middleware import DatagramReceived, Publisher, PublisherConfig, Unicast
from penstock.middleware._requests import RequestGate
from penstock.middleware.limiting import RepairLimits
from penstock.middleware.publisher import REPAIR_SLICE, REPAIRS_PENDING_MAX
from penstock.wire import DatagramBatch, encode_nack
from unit.authentication_kit import KEY, authentic
from unit.middleware_kit import GROUP, MS, PUBLISHER_ID, SOURCE, publish

OTHER = ("10.0.0.2", 4_000)
SECOND_NS = 1_000 * MS


def filled(count: int, **config: object) -> Publisher:
    core = Publisher(PUBLISHER_ID, 1, PublisherConfig(**config))  # type: ignore[arg-type]
    for number in range(count):
        publish(core, str(number).encode())
    return core


def ask(core: Publisher, first: int, last: int, now_ns: int = 0, source: tuple[str, int] = SOURCE) -> list[Unicast]:
    request = encode_nack(PUBLISHER_ID, GROUP, 1, [(first, last)])
    return [each for each in core.handle(DatagramReceived(request, source), now_ns) if isinstance(each, Unicast)]


def rest(core: Publisher, now_ns: int) -> int:
    """Packets that further Ticks at this time send again."""
    sent = 0
    while (due_ns := core.next_deadline_ns()) is not None and due_ns <= now_ns and core._repairs:
        answers = [each for each in core.handle(Tick(), now_ns) if isinstance(each, Unicast)]
        assert len(answers) <= REPAIR_SLICE
        sent += len(answers)
    return sent


@pytest.mark.spec("AUTH-3")
def test_one_request_is_answered_in_slices() -> None:
    core = filled(1_000)
    assert len(ask(core, 1, 1_000)) == REPAIR_SLICE
    assert core.next_deadline_ns() == 0
    assert rest(core, 0) == 1_000 - REPAIR_SLICE
    assert core.counters["repairs_sent"] == 1_000


@pytest.mark.spec("AUTH-3")
def test_packets_sent_again_are_limited_by_source_and_in_total() -> None:
    core = filled(
        1_000, repair_source_rate_max=100, repair_rate_max=150, repair_packets_max=50, retransmission_packets_max=2_000
    )

    def sent(source: tuple[str, int], now_ns: int) -> int:
        return len(ask(core, 1, 1_000, now_ns, source)) + rest(core, now_ns)

    assert sent(SOURCE, 0) == 50  # the burst of one source, and of all
    assert sent(SOURCE, 0) == 0
    assert sent(OTHER, 0) == 0
    assert core.counters["nacks_limited"] == 3
    assert sent(OTHER, SECOND_NS) == 50
    assert sent(SOURCE, SECOND_NS) == 0
    assert sent(SOURCE, SECOND_NS + 200 * MS) == 30  # what the total has by then


@pytest.mark.spec("AUTH-3")
def test_what_waits_to_be_sent_again_is_bounded() -> None:
    core = filled(5_000, repair_packets_max=5_000, repair_rate_max=10**6, repair_source_rate_max=10**6)
    for number in range(10):
        ask(core, 1, 5_000, 0, ("10.0.0.3", number))
        assert len(core._repairs) <= REPAIRS_PENDING_MAX
    assert core.counters["nacks_limited"] > 0


@pytest.mark.spec("AUTH-3")
def test_a_packet_that_made_room_meanwhile_is_not_sent_again() -> None:
    core = filled(100, retransmission_packets_max=100)
    ask(core, 1, 100)
    for number in range(100):
        publish(core, str(number).encode())
    assert rest(core, 0) == 0
    assert core.counters["repairs_unavailable"] == 100 - REPAIR_SLICE


def test_sources_that_are_remembered_are_bounded() -> None:
    limits = RepairLimits(10, 1_000_000, 10)
    for number in range(10_000):
        assert limits.available(("10.0.0.1", number), 0) == 10
    assert len(limits._sources) == 4_096


def gate(**values: object) -> RequestGate:
    options: dict[str, object] = {"source_per_s": 10, "source_burst": 2, "total_per_s": 100, "total_burst": 5} | values
    return RequestGate(1, publisher_id=PUBLISHER_ID, own=99, **options)  # type: ignore[arg-type]


def requests(count: int, *, source: tuple[str, int] = SOURCE, data: bytes | None = None) -> DatagramBatch:
    batch = DatagramBatch(64)
    for _ in range(count):
        batch.append(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 9)]) if data is None else data, source)
    return batch


@pytest.mark.spec("AUTH-3")
def test_the_gate_limits_requests_by_source_and_in_total() -> None:
    core = gate()
    first = requests(4)
    core.admit(first, SECOND_NS)
    assert (len(first), core.limited) == (2, 2)
    later = requests(4)
    core.admit(later, 2 * SECOND_NS)
    assert len(later) == 2
    total = gate(source_burst=64)
    for _ in range(2):
        batch = requests(4)
        total.admit(batch, SECOND_NS)
    assert total.limited == 3


@pytest.mark.spec("AUTH-3")
def test_the_gate_passes_over_what_is_no_request_to_the_publisher() -> None:
    core = gate()
    for data in (encode_nack(PUBLISHER_ID + 1, GROUP, 1, [(1, 9)]), publish(filled(0), b"x")[0].data):
        batch = requests(3, data=bytes(data))
        core.admit(batch, SECOND_NS)
        assert len(batch) == 0
    batch = requests(1, data=b"garbage")
    core.admit(batch, SECOND_NS)
    assert (len(batch), core.limited) == (1, 0)  # the publisher counts it


@pytest.mark.spec("AUTH-1", "AUTH-3")
def test_requests_without_a_key_take_no_tokens() -> None:
    publisher = Publisher(PUBLISHER_ID, 1, PublisherConfig(), is_authenticated=True)
    publisher.authenticate([KEY], KEY.key_id)
    core = gate(authenticator=publisher.authenticator)
    forged = requests(20)
    core.admit(forged, SECOND_NS)
    assert (len(forged), core.limited) == (0, 0)
    request = authentic(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 9)]))
    good = requests(1, data=request)
    core.admit(good, SECOND_NS)
    assert bytes(good.datagram(0)) == request
