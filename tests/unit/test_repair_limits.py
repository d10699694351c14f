"""Repair requests are limited by source and in total, and answered in slices between which the publisher can send."""

import pytest

from penstock.base.core import Tick
from penstock.middleware import DatagramReceived, Publisher, PublisherConfig, Unicast
from penstock.middleware.core._requests import REQUEST_WINDOW, REQUESTERS_MAX, RequestGate
from penstock.middleware.core.publisher import REPAIR_PACE_NS, REPAIR_SLICE, REPAIRS_PENDING_MAX
from penstock.middleware.core.repair_limits import RepairLimits
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


def rest(core: Publisher, now_ns: int) -> tuple[int, int]:
    """The packets that later Ticks send again, and the time after the last one."""
    sent = 0
    while core._repairs:
        due_ns = core.next_deadline_ns()
        assert due_ns is not None
        assert [each for each in core.handle(Tick(), max(now_ns, due_ns - 1)) if isinstance(each, Unicast)] == []
        now_ns = max(now_ns, due_ns)
        answers = [each for each in core.handle(Tick(), now_ns) if isinstance(each, Unicast)]
        assert len(answers) <= REPAIR_SLICE
        sent += len(answers)
    return sent, now_ns


@pytest.mark.spec("AUTH-3")
def test_one_request_is_answered_in_slices() -> None:
    core = filled(1_000, keep_alive_first_ms=10_000, keep_alive_ms=10_000)
    assert len(ask(core, 1, 1_000)) == REPAIR_SLICE
    assert core.next_deadline_ns() == REPAIR_PACE_NS
    assert rest(core, 0) == (1_000 - REPAIR_SLICE, 31 * REPAIR_PACE_NS)
    assert core.counters["repairs_sent"] == 1_000


@pytest.mark.spec("AUTH-3")
def test_many_small_requests_get_at_most_one_slice() -> None:
    core = filled(1_000, keep_alive_first_ms=10_000, keep_alive_ms=10_000)
    sent = [len(ask(core, number, number, number)) for number in range(1, 101)]  # a nanosecond apart
    assert sent == [1] * REPAIR_SLICE + [0] * (100 - REPAIR_SLICE)
    assert rest(core, 100) == (100 - REPAIR_SLICE, 1 + 3 * REPAIR_PACE_NS)


@pytest.mark.spec("AUTH-3")
def test_the_slice_grows_with_the_rate() -> None:
    core = filled(1_000, repair_rate_max=200_000, repair_source_rate_max=200_000)
    assert len(ask(core, 1, 1_000)) == 200


@pytest.mark.spec("AUTH-3")
def test_repeated_packets_are_limited_by_source_and_in_total() -> None:
    core = filled(
        1_000, repair_source_rate_max=100, repair_rate_max=150, repair_packets_max=50, retransmission_packets_max=2_000
    )

    def sent(source: tuple[str, int], now_ns: int) -> int:
        return len(ask(core, 1, 1_000, now_ns, source)) + rest(core, now_ns)[0]

    assert sent(SOURCE, 0) == 50  # the burst of one source, and of all
    assert sent(SOURCE, 0) == 0
    assert sent(OTHER, 0) == 0
    assert core.counters["nacks_limited"] == 3
    assert sent(OTHER, SECOND_NS) == 50
    assert sent(SOURCE, SECOND_NS) == 0
    assert sent(SOURCE, SECOND_NS + 200 * MS) == 30  # the total allowance at that time


@pytest.mark.spec("AUTH-3")
def test_the_queue_of_repairs_is_bounded() -> None:
    core = filled(5_000, repair_packets_max=5_000, repair_rate_max=10**6, repair_source_rate_max=10**6)
    for number in range(10):
        ask(core, 1, 5_000, 0, ("10.0.0.3", number))
        assert len(core._repairs) <= REPAIRS_PENDING_MAX
    assert core.counters["nacks_limited"] > 0


@pytest.mark.spec("AUTH-3")
def test_an_evicted_packet_is_not_sent_again() -> None:
    core = filled(100, retransmission_packets_max=100)
    ask(core, 1, 100)
    for number in range(100):
        publish(core, str(number).encode())
    assert rest(core, 0)[0] == 0
    assert core.counters["repairs_unavailable"] == 100 - REPAIR_SLICE


def test_remembered_sources_are_bounded() -> None:
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
def test_the_gate_ignores_datagrams_that_are_not_requests_to_the_publisher() -> None:
    core = gate()
    for data in (encode_nack(PUBLISHER_ID + 1, GROUP, 1, [(1, 9)]), publish(filled(0), b"x")[0].data):
        batch = requests(3, data=bytes(data))
        core.admit(batch, SECOND_NS)
        assert len(batch) == 0
    batch = requests(1, data=b"garbage")
    core.admit(batch, SECOND_NS)
    assert (len(batch), core.limited) == (1, 0)  # the publisher counts it


@pytest.mark.spec("AUTH-1", "AUTH-3")
def test_requests_without_a_key_use_no_tokens() -> None:
    publisher = Publisher(PUBLISHER_ID, 1, PublisherConfig(), is_authenticated=True)
    publisher.authenticate([KEY], KEY.key_id)
    core = gate(authenticator=publisher.authenticator)
    forged = requests(20)
    core.admit(forged, SECOND_NS)
    assert (len(forged), core.limited) == (0, 0)
    request = numbered(1)
    good = requests(1, data=request)
    core.admit(good, SECOND_NS)
    assert bytes(good.datagram(0)) == request


def numbered(number: int, requester: int = 7) -> bytes:
    return authentic(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 9)], requester=requester, number=number))


def gate_with_keys(**values: object) -> RequestGate:
    publisher = Publisher(PUBLISHER_ID, 1, PublisherConfig(), is_authenticated=True)
    publisher.authenticate([KEY], KEY.key_id)
    plenty = {"source_per_s": 1e9, "source_burst": 1e9, "total_per_s": 1e9, "total_burst": 1e9}
    return gate(authenticator=publisher.authenticator, **(plenty | values))


@pytest.mark.spec("AUTH-1", "AUTH-3")
@pytest.mark.parametrize("in_batch", [False, True])
def test_a_recorded_request_uses_no_tokens_and_is_not_admitted(in_batch: bool) -> None:
    core = gate_with_keys(source_burst=2, source_per_s=1e-9)

    def admit(data: bytes, source: tuple[str, int]) -> int:
        if not in_batch:
            return core.admits(data, 1 if source == SOURCE else 2, SECOND_NS)
        batch = requests(1, source=source, data=data)
        core.admit(batch, SECOND_NS)
        return len(batch)

    assert admit(numbered(5), SOURCE) == 1
    assert [admit(numbered(5), source) for source in (SOURCE, OTHER) * 50] == [0] * 100
    assert (core.stale, core.limited) == (100, 0)
    assert admit(numbered(6), SOURCE) == 1
    assert admit(numbered(7), SOURCE) == 0
    assert (core.stale, core.limited) == (100, 1)


@pytest.mark.spec("AUTH-3")
def test_each_number_of_a_requester_is_admitted_once_in_a_window_of_1024() -> None:
    core = gate_with_keys()

    def admitted(number: int, requester: int = 7) -> bool:
        return core.admits(numbered(number, requester), 1, SECOND_NS)

    assert [admitted(number) for number in (10, 12, 11, 11, 12, 10)] == [True, True, True, False, False, False]
    assert [admitted(number) for number in (1_060, 37, 37, 36, 12)] == [True, True, False, False, False]
    assert [admitted(number) for number in (1_059, 1_061, 1_036, 1_059)] == [True, True, True, False]
    assert [admitted(number) for number in (2**32 - 1, 2**32 - 1_024, 2**32 - 1_025)] == [True, True, False]
    # another requester is counted separately
    assert [admitted(number, requester=8) for number in (3, 3)] == [True, False]
    assert [admitted(0, requester=9), admitted(1, requester=0)] == [False, False]  # without a number


@pytest.mark.spec("AUTH-3")
def test_the_window_agrees_with_a_set_of_numbers() -> None:
    """Numbers of a random walk with small and large steps forward, and steps back."""
    core, received, newest, number = gate_with_keys(), set[int](), 0, 1
    steps = [1, 3, -2, 63, -64, 65, 700, -699, 1_023, -1_023, 2, 1_024, -1_000, 1_500, -1_400, 130]
    for step in steps * 20:
        number = max(number + step, 1)
        is_new = number not in received and number > newest - REQUEST_WINDOW
        assert core.admits(numbered(number), 1, SECOND_NS) == is_new, number
        received.add(number)
        newest = max(newest, number)


@pytest.mark.spec("AUTH-3")
@pytest.mark.parametrize("groups", [100, 400, 1_000])
def test_requests_of_many_groups_are_admitted_in_the_order_of_the_sockets(groups: int) -> None:
    """A publisher that listens on many groups has a socket for 20 of them, and reads the sockets in turn."""
    core = gate_with_keys()
    sockets = [range(first, min(first + 20, groups + 1)) for first in range(1, groups + 1, 20)]
    in_turn = [each[place] for place in range(20) for each in sockets if place < len(each)]
    assert [number for number in in_turn if not core.admits(numbered(number), 1, SECOND_NS)] == []
    assert core.stale == 0


@pytest.mark.spec("AUTH-3", "AUTH-4")
def test_remembered_requesters_are_bounded() -> None:
    core = gate_with_keys()
    for requester in range(1, 2 * REQUESTERS_MAX):
        assert core.admits(numbered(1, requester), 1, requester)
    recent = range(2 * REQUESTERS_MAX - 1_000, 2 * REQUESTERS_MAX)
    stale = core.stale
    refused = [not core.admits(numbered(1, requester), 1, SECOND_NS) for requester in recent]
    assert sum(refused) == core.stale - stale > 990
