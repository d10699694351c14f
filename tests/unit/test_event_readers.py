"""The readers of events for which the administration server waits."""

from penstock.admin.core.readers import EventReaders
from penstock.base.clock import NS_PER_SECOND

LOST_S = 10.0


def test_a_subscribed_client_is_waited_for_before_its_first_request() -> None:
    readers = EventReaders(LOST_S, 0)
    assert readers.behind(["alice"], 5, 1) == []
    readers.expect("alice", "session", 3, 1)
    assert readers.behind(["alice"], 5, 2) == ["alice"]
    readers.end(readers.begin("alice", "session", 5, 3), 4)
    assert readers.behind(["alice"], 5, 5) == []


def test_a_further_subscription_does_not_confirm_events_that_the_reader_has_not_requested() -> None:
    readers = EventReaders(LOST_S, 0)
    readers.end(readers.begin("alice", "session", 3, 1), 2)
    readers.expect("alice", "session", 5, 3)
    assert readers.behind(["alice"], 5, 4) == ["alice"]


def test_a_client_that_never_polls_is_forgotten() -> None:
    readers = EventReaders(LOST_S, 0)
    readers.expect("alice", "session", 3, 1)
    assert readers.behind(["alice"], 5, 1 + round(LOST_S * NS_PER_SECOND) + 1) == []
