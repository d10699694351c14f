"""The time for which an adapter without the administration server seals with its stream key (AUTH-6)."""

import pytest

from penstock.admin import AdminLimits
from penstock.base.clock import NS_PER_SECOND, BootClock
from penstock.base.counters import Counters
from penstock.base.errors import ConfigurationError
from penstock.feed.core.sync.announcement import announcement_message, end_message
from penstock.feed.core.sync.messages import Announced
from penstock.feed.live.outbound import Outbound
from penstock.middleware import Publisher, PublisherConfig
from penstock.middleware.core.events import OutgoingMessage
from penstock.middleware.core.source_stream import DiscontinuityNote, session_event_in
from penstock.net.udp import Channel
from penstock.security import Sealer, StreamKey
from penstock.security.live.key_lease import KeyLease
from penstock.wire import MessageFlag, OriginFlag, decode
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag

KEY = StreamKey("itch", 3, bytes(32))

pytestmark = pytest.mark.spec("AUTH-6")


class SetClock(BootClock):
    def __init__(self) -> None:
        self.ns = 1_000 * NS_PER_SECOND

    def now_ns(self) -> int:
        return self.ns

    def advance(self, seconds: float) -> None:
        self.ns += int(seconds * NS_PER_SECOND)


def test_a_lease_counts_from_the_request_and_is_never_shortened() -> None:
    clock = SetClock()
    lease = KeyLease("sealing", clock)
    assert not lease.is_valid
    assert "has not begun" in lease.trouble
    asked_ns = lease.now_ns()
    clock.advance(4)  # the answer was slow
    lease.renew(asked_ns, 10.0)
    assert lease.left_s == 6
    lease.renew(asked_ns - 3 * NS_PER_SECOND, 10.0)  # an overtaken answer
    assert lease.left_s == 6
    clock.advance(5.999)
    assert lease.is_valid
    clock.advance(0.001)
    assert not lease.is_valid
    assert lease.left_s == 0


def test_the_end_of_sealing_is_logged_before_and_when_it_happens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    clock = SetClock()
    lease = KeyLease("sealing", clock)
    lease.tell(adapter="a")
    lease.renew(clock.ns, 10.0)
    lease.tell(adapter="a")
    assert (lease.trouble, caplog.records) == ("", [])
    clock.advance(6)
    for _ in range(3):
        lease.tell(adapter="a")
    assert lease.trouble == "sealing ends in 4 s unless an administration server answers"
    clock.advance(4)
    for _ in range(3):
        lease.tell(adapter="a")
    assert lease.trouble == "sealing has ended: no administration server has answered for 10 s"
    lease.renew(clock.ns, 10.0)
    lease.tell(adapter="a")
    assert caplog.messages == ["sealing_lease_ends_soon", "sealing_lease_ended", "sealing_lease_renewed"]


def test_without_a_lease_nothing_is_sent_and_no_message_leaves_unsealed() -> None:
    clock = SetClock()
    counters = Counters("publisher")
    publisher = Publisher(7, 1, PublisherConfig(), counters)
    out = Outbound(publisher, Channel(), None, now_ns=0, is_sealed=True)
    out.lease = KeyLease("sealing", clock)
    out.seal_with(Sealer(KEY, 7, 1))
    message = OutgoingMessage("md.x", b"1", 1, 1)
    out.publish_message(message, 1)
    assert (len(out.cursor.kept), out.messages_unsent, counters["messages_unsealed"]) == (0, 1, 1)
    before = out.cursor.kept.next_sequence
    out.lease.renew(clock.ns, 5.0)
    out.publish_message(message, 2)
    sent = out.cursor.kept.next_sequence
    assert sent == before + 1
    clock.advance(5)
    out.publish_message(message, 3)
    assert (out.cursor.kept.next_sequence, out.messages_unsent) == (sent, 2)
    assert out.open_store.next_sequence == 4, "subscribers with tokens still get it one by one"
    out.lease.renew(clock.ns, 5.0)
    out.publish_message(message, 4)
    assert out.cursor.kept.next_sequence > sent


@pytest.mark.spec("DAY-3")
def test_a_receiver_of_a_sealed_feed_gets_names_and_dates_of_sessions() -> None:
    """Streams are merged before messages are opened: a sealed announcement contained neither."""
    clock, sent = SetClock(), []
    publisher = Publisher(7, 1, PublisherConfig(), Counters("publisher"))
    out = Outbound(publisher, Channel(), None, now_ns=0, is_sealed=True)
    out.lease = KeyLease("sealing", clock)
    out.seal_with(Sealer(KEY, 7, 1))
    flags = int(OriginFlag.SYNCHRONISED) | session_tag("day", "2024-01-02") << SESSION_TAG_SHIFT
    body = DiscontinuityNote("session", [], "day", "2024-01-02").encode()
    begin = announcement_message(Announced(5, 1, 3, 4, body), 5, flags, is_repeated=False)
    end = end_message(1, 5, flags, number=3, source_sequence=4, session="day", trading_date="2024-01-02")
    out.publish_message(begin, 1)
    assert not len(out.cursor.kept), "without a lease nothing is sent"
    out.lease.renew(clock.ns, 5.0)
    for message in (begin, OutgoingMessage("md.x", b"1", 1, 1), end):
        at = out.cursor.kept.next_sequence
        out.publish_message(message, 2)
        sent += list(decode(out.cursor.kept.get(at)))
    assert [bool(each.flags & MessageFlag.SEALED) for each in sent] == [False, True, False]
    sessions = [session_event_in(each) for each in sent]
    assert [(each.kind, each.session, each.trading_date) for each in sessions if each is not None] == [
        ("begin", "day", "2024-01-02"),
        ("end", "day", "2024-01-02"),
    ]


def test_a_lease_is_longer_than_two_heartbeats() -> None:
    with pytest.raises(ConfigurationError, match="two heartbeats"):
        AdminLimits(heartbeat_s=5.0, key_lease_s=10.0)
