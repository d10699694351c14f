"""A receiver without an administration server accepts packets until the lease of its authentication keys ends."""

import time
from pathlib import Path

import msgspec
import pytest

from admin_plant import Plant
from penstock.base.clock import NS_PER_SECOND
from penstock.base.counters import Cause
from penstock.middleware import DatagramReceived, DatagramsReceived, Deliver, DeliverBatch, Receiver, ReceiverConfig
from penstock.security.core.brokering import Authentication
from penstock.security.live import authentication_state
from penstock.security.live.authentication_state import AuthenticationState
from penstock.security.live.key_lease import EVENTS_WAIT_SECONDS, ReceivingLease
from penstock.wire import Authenticator, DatagramBatch
from unit.authentication_kit import authentic, scope
from unit.middleware_kit import SOURCE, NoRandomness, packets
from unit.test_sealing_lease import SetClock

LEASE_S = 10.0


def told() -> Authentication:
    found = Plant().register().authentication
    assert found is not None
    return found


def answered(path: Path, clock: SetClock) -> ReceivingLease:
    """The lease of a node that has just received an answer and stored it."""
    lease = ReceivingLease(clock)
    state = AuthenticationState(path, lambda scopes: None, lease)
    state.renew([told()])
    state.note_answer(clock.ns, LEASE_S)
    return lease


def restarted(path: Path, clock: SetClock | None) -> ReceivingLease:
    lease = ReceivingLease(clock)
    assert AuthenticationState(path, lambda scopes: None, lease).scopes
    return lease


@pytest.mark.spec("AUTH-6")
@pytest.mark.parametrize("in_batch", [False, True])
def test_authentic_packets_are_dropped_and_counted_after_the_lease_has_ended(in_batch: bool) -> None:
    clock = SetClock()
    lease = ReceivingLease(clock)
    receiver = Receiver(ReceiverConfig(), NoRandomness(), authenticator=Authenticator([scope()], lease=lease.flag))
    heard: list[bytes] = []

    def take(datagram: bytes) -> None:
        event: DatagramReceived | DatagramsReceived = DatagramReceived(datagram, SOURCE)
        if in_batch:
            batch = DatagramBatch(1)
            batch.append(datagram, SOURCE)
            event = DatagramsReceived(batch)
        for each in receiver.handle(event, clock.ns):
            if isinstance(each, Deliver | DeliverBatch):
                heard.extend(bytes(message.payload) for message in each.messages)

    first, second, third, fourth = (authentic(each) for each in packets(4))
    take(first)
    assert heard == []
    lease.renew(clock.ns, LEASE_S)
    take(first)
    clock.advance(LEASE_S - 0.1)
    lease.check()
    take(second)
    assert heard == [b"1", b"2"]
    clock.advance(0.1)
    lease.check()
    take(third)
    take(b"\x00" * 100)
    assert heard == [b"1", b"2"]
    assert receiver.counters.by_cause("packets_dropped") == {Cause.LEASE_ENDED: 2, Cause.UNAUTHENTICATED: 1}
    lease.renew(clock.ns, LEASE_S)
    take(third)
    take(fourth)
    assert heard == [b"1", b"2", b"3", b"4"]


@pytest.mark.spec("AUTH-6")
def test_the_end_of_the_lease_is_logged_at_half_time_and_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = SetClock()
    lease = ReceivingLease(clock, filter="f")
    lease.check()
    lease.renew(clock.ns, LEASE_S)
    clock.advance(LEASE_S / 2)
    lease.check()
    assert caplog.messages == []
    clock.advance(1)
    lease.check()
    lease.check()
    assert caplog.messages == ["receiving_lease_ends_soon"]
    assert lease.trouble == "receiving ends in 4 s unless an administration server answers"
    clock.advance(4)
    lease.check()
    lease.renew(clock.ns, LEASE_S)
    assert caplog.messages == ["receiving_lease_ends_soon", "receiving_lease_ended", "receiving_lease_renewed"]


def test_an_answer_with_some_of_the_keys_starts_a_lease_and_does_not_renew_it() -> None:
    clock = SetClock()
    lease = ReceivingLease(clock)
    lease.begin(clock.ns, LEASE_S)
    clock.advance(LEASE_S - 1)
    lease.begin(clock.ns, LEASE_S)
    assert lease.left_s == 1


def test_the_poll_interval_is_shorter_than_a_short_lease() -> None:
    lease = ReceivingLease(SetClock())
    assert lease.events_wait_s == EVENTS_WAIT_SECONDS
    lease.renew(lease.now_ns(), 2.0)
    assert lease.events_wait_s == 0.5
    lease.renew(lease.now_ns(), 600.0)
    assert lease.events_wait_s == EVENTS_WAIT_SECONDS


@pytest.mark.spec("AUTH-6")
def test_a_restart_does_not_extend_the_lease(tmp_path: Path) -> None:
    path, clock = tmp_path / "authentication.json", SetClock()
    answered(path, clock)
    for left_s in (6, 2):
        clock.advance(4)
        lease = restarted(path, clock)
        assert (lease.left_s, lease.flag.has_ended) == (left_s, False)
    clock.advance(2)
    assert restarted(path, clock).flag.has_ended
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.spec("AUTH-6")
def test_a_restart_of_the_machine_ends_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, clock = tmp_path / "authentication.json", SetClock()
    answered(path, clock)
    monkeypatch.setattr(authentication_state, "boot_id", lambda: b"another run ....")
    assert restarted(path, clock).flag.has_ended


@pytest.mark.spec("AUTH-6")
def test_a_clock_that_is_set_back_does_not_extend_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, hour_s = tmp_path / "authentication.json", 3_600
    lease = ReceivingLease()
    state = AuthenticationState(path, lambda scopes: None, lease)
    state.renew([told()])
    asked_ns = lease.now_ns() - (hour_s - 60) * NS_PER_SECOND
    state.note_answer(asked_ns, float(hour_s))
    real_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() - hour_s * NS_PER_SECOND)
    monkeypatch.setattr(time, "time", lambda: time.time_ns() / NS_PER_SECOND)
    assert lease.left_s <= 60
    assert restarted(path, None).left_s <= 60


@pytest.mark.parametrize("heard_ns", [0, 10**18])
def test_a_stored_answer_without_a_time_or_from_the_future_is_no_lease(tmp_path: Path, heard_ns: int) -> None:
    path, clock = tmp_path / "authentication.json", SetClock()
    answered(path, clock)
    stored = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**stored, "heard_ns": heard_ns}))
    assert restarted(path, clock).flag.has_ended


def test_keys_stored_by_an_earlier_version_wait_for_a_server(tmp_path: Path) -> None:
    path = tmp_path / "authentication.json"
    path.write_bytes(msgspec.json.encode([told()]))
    path.chmod(0o600)
    assert restarted(path, SetClock()).flag.has_ended


@pytest.mark.parametrize("lease_s", [-1.0, 1e300])
def test_a_file_with_an_impossible_lease_is_not_used(tmp_path: Path, lease_s: float) -> None:
    path, clock = tmp_path / "authentication.json", SetClock()
    answered(path, clock)
    stored = msgspec.json.decode(path.read_bytes())
    path.write_bytes(msgspec.json.encode({**stored, "lease_s": lease_s}))
    lease = ReceivingLease(clock)
    assert AuthenticationState(path, lambda scopes: None, lease).scopes == []
    assert lease.flag.has_ended
