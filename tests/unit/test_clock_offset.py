"""Clock offsets: intervals that contain the true offset, detection of clock jumps, and packet checks."""

import pytest

from penstock.base.counters import Counters
from penstock.base.errors import PacketError
from penstock.net.config import ClockConfig
from penstock.net.core.clock import (
    ClockEstimator,
    ClockPacket,
    ClockPacketKind,
    decode_clock_packet,
    encode_clock_packet,
)
from penstock.net.core.events import ClockSample

SECOND = 1_000_000_000
REQUEST = ClockPacket(ClockPacketKind.REQUEST, cookie=2**64 - 1, t1=-1, t2=2**63 - 1, t3=-(2**63))


def sample(offset_ns: int, there_ns: int, back_ns: int, *, sent_ns: int = 0, work_ns: int = 10) -> ClockSample:
    came_ns = sent_ns + there_ns + offset_ns
    return ClockSample(sent_ns, came_ns, came_ns + work_ns, sent_ns + there_ns + work_ns + back_ns)


def estimator(**config: int) -> tuple[ClockEstimator, Counters]:
    counters = Counters("clock")
    return ClockEstimator(ClockConfig(**config), counters), counters


@pytest.mark.spec("OPS-3")
def test_the_error_of_one_exchange_is_half_its_round_trip() -> None:
    core, _ = estimator()
    assert core.estimate(0) is None
    core.add(sample(1_000_000, 400, 600), now_ns=5)
    estimate = core.estimate(5)
    assert estimate is not None
    assert estimate.offset_ns == pytest.approx(1_000_000 - 100, abs=2)
    assert estimate.error_ns == pytest.approx(500, abs=4)
    assert (estimate.round_trip_ns, estimate.samples, estimate.age_ns) == (1_000, 1, 0)


@pytest.mark.spec("OPS-3")
def test_delays_in_opposite_directions_narrow_the_interval_below_the_best_round_trip() -> None:
    core, _ = estimator()
    core.add(sample(0, 10, 5_000), now_ns=0)
    core.add(sample(0, 5_000, 10), now_ns=0)
    estimate = core.estimate(0)
    assert estimate is not None
    assert estimate.error_ns < 20
    assert abs(estimate.offset_ns) <= estimate.error_ns


@pytest.mark.spec("OPS-3")
def test_the_error_grows_with_age_until_the_estimate_expires() -> None:
    core, _ = estimator(drift_ppm=50, age_ms_max=10_000)
    core.add(sample(0, 500, 500), now_ns=0)
    fresh, old = core.estimate(0), core.estimate(10 * SECOND)
    assert fresh is not None
    assert old is not None
    assert old.error_ns - fresh.error_ns == 500_000
    assert core.estimate(10 * SECOND + 1) is None


@pytest.mark.spec("OPS-3")
@pytest.mark.parametrize("step_ns", [SECOND, -SECOND, 1_000_000, -1_000_000])
def test_a_clock_adjustment_is_detected_and_resets_the_estimate(step_ns: int) -> None:
    core, counters = estimator()
    for _ in range(5):
        core.add(sample(0, 500, 500), now_ns=0)
    core.add(sample(step_ns, 500, 500), now_ns=SECOND)
    estimate = core.estimate(SECOND)
    assert estimate is not None
    assert abs(estimate.offset_ns - step_ns) <= estimate.error_ns
    assert estimate.samples == 1
    assert counters["clock_jumps"] == 1


@pytest.mark.spec("OPS-3")
def test_a_clock_set_back_during_the_exchange_is_detected() -> None:
    core, counters = estimator()
    core.add(sample(0, 500, 500), now_ns=0)
    core.add(ClockSample(t1=10_000_000, t2=10_000_500, t3=10_000_510, t4=0), now_ns=SECOND)
    assert core.estimate(SECOND) is None
    assert counters["clock_jumps"] == 1


@pytest.mark.spec("OPS-3")
@pytest.mark.parametrize("t2", [-(2**63), 2**63 - 1])
def test_any_answer_is_handled_without_an_error(t2: int) -> None:
    core, counters = estimator()
    core.add(ClockSample(0, t2, 0, 1), now_ns=0)
    assert counters["clock_samples"] + counters["clock_jumps"] <= 1


@pytest.mark.parametrize("kind", list(ClockPacketKind))
def test_packets_are_decoded_unchanged(kind: ClockPacketKind) -> None:
    packet = ClockPacket(kind, REQUEST.cookie, REQUEST.t1, REQUEST.t2, REQUEST.t3)
    data = encode_clock_packet(packet)
    assert len(data) == 64
    assert decode_clock_packet(data) == packet


def test_every_truncation_and_every_flipped_bit_is_detected() -> None:
    data = encode_clock_packet(REQUEST)
    for size in range(64):
        with pytest.raises(PacketError) as caught:
            decode_clock_packet(data[:size])
        assert caught.value.cause == "length"
    with pytest.raises(PacketError):
        decode_clock_packet(data + b"\0")
    causes = set()
    for bit in range(64 * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PacketError) as caught:
            decode_clock_packet(bytes(damaged))
        causes.add(caught.value.cause)
    assert causes == {"foreign", "version", "checksum"}
