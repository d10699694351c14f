"""Data of a subscription besides messages: the newest losses and session events, and counts."""

from penstock.middleware.core.delivery_record import DeliveryRecord
from penstock.middleware.core.events import SessionEvent


def test_the_newest_losses_are_kept_and_all_are_counted() -> None:
    record: DeliveryRecord[str] = DeliveryRecord(2)
    for each in "abc":
        record.add_loss(each)
    assert (record.losses, record.loss_count) == (["b", "c"], 3)
    record.losses.clear()
    assert record.losses == ["b", "c"], "the application gets a copy"


def test_the_newest_session_events_are_kept() -> None:
    record: DeliveryRecord[str] = DeliveryRecord(1)
    first, second = (SessionEvent("begin", number) for number in range(2))
    record.add_session(first)
    record.add_session(second)
    assert record.sessions == [second]
    assert record.loss_count == 0
