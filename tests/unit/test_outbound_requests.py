"""Repair requests to an adapter pass the same limits and pacing as requests to any publisher."""

import pytest

from penstock.base.counters import Cause
from penstock.feed.live.outbound import Outbound
from penstock.middleware import OutgoingMessage, Publisher, PublisherConfig
from penstock.middleware.core.publisher import REPAIR_PACE_NS, REPAIR_SLICE
from penstock.net.udp import Channel
from penstock.wire import DatagramBatch, encode_nack
from unit.authentication_kit import KEY, authentic
from unit.middleware_kit import MS, PUBLISHER_ID, SOURCE

SECOND_NS = 1_000 * MS
GROUP = Channel().group_id


def outbound(*, is_authenticated: bool = False, **config: int) -> Outbound:
    limits = PublisherConfig(keep_alive_first_ms=10_000, keep_alive_ms=10_000, **config)
    publisher = Publisher(PUBLISHER_ID, 1, limits, is_authenticated=is_authenticated)
    if is_authenticated:
        publisher.authenticate([KEY], KEY.key_id)
    made = Outbound(publisher, Channel(), None, now_ns=SECOND_NS)
    for number in range(100):
        made.publish_message(OutgoingMessage("t", str(number).encode()), SECOND_NS)
    return made


def requests(*data: bytes) -> DatagramBatch:
    batch = DatagramBatch(64)
    for each in data:
        batch.append(each, SOURCE)
    return batch


@pytest.mark.spec("AUTH-3")
def test_requests_to_an_adapter_are_limited_before_they_are_answered() -> None:
    adapter = outbound(request_source_rate_max=50)
    request = encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 1)])
    adapter.receive(requests(*[request] * 64), SECOND_NS)
    assert adapter.counters["nacks_received"] == 16
    assert adapter.counters["nacks_limited"] == 48


@pytest.mark.spec("AUTH-1", "AUTH-3")
def test_an_adapter_does_not_answer_a_recorded_request_again() -> None:
    adapter = outbound(is_authenticated=True)
    request = authentic(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 1)], requester=7, number=1))
    for _ in range(10):
        adapter.receive(requests(request), SECOND_NS)
    assert adapter.counters["nacks_received"] == adapter.counters["repairs_sent"] == 1
    assert adapter.counters.by_cause("packets_dropped") == {Cause.STALE_REQUEST: 9}


@pytest.mark.spec("AUTH-3")
def test_repairs_of_an_adapter_are_paced_independently_of_its_loop() -> None:
    adapter = outbound()
    adapter.receive(requests(encode_nack(PUBLISHER_ID, GROUP, 1, [(1, 100)])), SECOND_NS)
    for _ in range(50):
        adapter.tick(SECOND_NS + REPAIR_PACE_NS - 1)
    assert adapter.counters["repairs_sent"] == REPAIR_SLICE
    assert adapter.next_deadline_ns() == SECOND_NS + REPAIR_PACE_NS
    adapter.tick(SECOND_NS + REPAIR_PACE_NS)
    assert adapter.counters["repairs_sent"] == 2 * REPAIR_SLICE
