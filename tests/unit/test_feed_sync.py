"""The rules that keep the adapters of a feed together, one by one."""

from typing import Any

import pytest

from penstock.feed.events import (
    HealthMeasured,
    Paused,
    PersistTerm,
    SendPeer,
    SynchronisationChanged,
    TermPersisted,
)
from penstock.feed.health import Health
from penstock.feed.messages import AdapterState, ImageChunk, StreamState
from penstock.wire import OriginFlag
from penstock.wire.term import Term, lineage
from unit.feed_kit import STREAM, Adapter, Table, source

ANNOUNCEMENT = OriginFlag.DISCONTINUITY


def started(count: int = 2, **options: Any) -> Table:
    table = Table(count, **options)
    table.wait(1_200)
    return table


def announcements(adapter: Adapter) -> list[tuple[Term, bytes]]:
    return [(Term.of(origin.term), body) for origin, body in adapter.sent if origin.flags & ANNOUNCEMENT]


def assert_one_content_per_number(*adapters: Adapter) -> None:
    contents: dict[tuple[int, int], bytes] = {}
    for adapter in adapters:
        for (term, number), payload in adapter.usable().items():
            assert contents.setdefault((lineage(term), number), payload) == payload


# Starting


def test_the_lowest_index_begins_and_says_so() -> None:
    table = started(3)
    assert table.active().index == 0
    assert announcements(table[0]) == [(Term(1, 0, 0, 0), b'{"reason":"start","lost":[],"session":"day 1"}')]
    assert [each.core.is_synchronised(STREAM) for each in table.adapters.values()] == [True, True, True]


def test_nobody_begins_while_others_may_still_come() -> None:
    table = Table(2)
    table.wait(900)
    assert all(each.core.role == "backup" for each in table.adapters.values())


@pytest.mark.spec("SYNC-8")
def test_a_term_is_used_only_when_it_is_on_the_disk() -> None:
    table = Table(1)
    table[0].disk_waits = True
    table.wait(3_000)
    assert table[0].of_kind(PersistTerm) == [PersistTerm(int(Term(1, 0, 0, 0)))]
    table.feed(1, 10)
    assert table[0].core.role == "backup"
    assert not table[0].usable()
    table[0].handle(TermPersisted(int(Term(1, 0, 0, 0))))
    assert table[0].core.role == "active"
    table.feed(11, 20)
    assert table[0].usable()


# What the active adapter tells, and how a backup compares


@pytest.mark.spec("SYNC-1")
def test_the_active_adapter_tells_each_backup_numbers_state_and_health() -> None:
    table = started(3)
    table[0].said.clear()
    table[0].handle(HealthMeasured(Health(cpu_free=0.5)))
    table.feed(1, 16)
    table.wait(150)
    sent = [(each.index, each.message) for each in table[0].of_kind(SendPeer)]
    for backup in (1, 2):
        states = [message for index, message in sent if index == backup and isinstance(message, StreamState)]
        assert {8, 16, 17} <= {state.next_source_sequence for state in states}
        assert states[-1].digest == table[0].converter.state.digest
        assert states[-1].next_message_sequence == table[0].converter.next_message_sequence
        health = [message.health for index, message in sent if index == backup and isinstance(message, AdapterState)]
        assert health[-1] == 900


@pytest.mark.spec("SYNC-2")
def test_synchronised_adapters_give_one_number_to_one_content() -> None:
    table = started(3)
    table.feed(1, 100)
    sent = [each.usable() for each in table.adapters.values()]
    assert len(sent[0]) > 50
    assert sent[0] == sent[1] == sent[2]


@pytest.mark.spec("SYNC-2")
def test_what_an_unsynchronised_backup_sends_says_so() -> None:
    table = started(1)
    table.feed(1, 20)
    late = table.start(1, first=21)
    table.cut(0, 1)
    late.sent.clear()
    table.feed(21, 30)
    assert late.sent
    assert not late.usable()


@pytest.mark.spec("SYNC-3")
def test_a_number_is_set_where_the_message_was_not_sent_yet() -> None:
    table = started()
    active, backup = table[0], table[1]
    backup.converter.next_message_sequence = 1_000
    backup.core._streams[STREAM].unsynchronise("for the test")
    table.feed(1, 10, only=[0])
    assert not backup.core.is_synchronised(STREAM)
    backup.take(1, 12)  # past position 8, where the numbers are compared
    assert backup.core.is_synchronised(STREAM)
    assert 0 < max(number for _, number in backup.usable()) < 1_000
    assert not backup.of_kind(Paused)
    table.feed(11, 40)
    assert backup.converter.next_message_sequence == active.converter.next_message_sequence
    assert_one_content_per_number(active, backup)


@pytest.mark.spec("SYNC-4")
@pytest.mark.parametrize("every", [1, 2])
def test_a_backup_that_is_ahead_pauses_until_the_active_adapter_is(every: int) -> None:
    table = started(pause_ms=5, pause_every=every, checkpoint_interval=1_024)
    active, backup = table[0], table[1]
    backup.converter.next_message_sequence = 500
    backup.core._streams[STREAM].unsynchronise("for the test")
    table.feed(1, 6, only=[1])
    table.wait(102)  # the active adapter is at position 1, which the backup has passed
    assert backup.of_kind(Paused)
    backup.sent.clear()
    backup.take(7, 30)
    assert not backup.sent
    table.wait(23)
    position = backup.converter.next_source_sequence
    assert 7 + 4 * every <= position <= 7 + 5 * every
    assert not backup.usable()
    active.take(1, 29)
    table.wait(100)
    assert backup.core.is_synchronised(STREAM)
    table.feed(30, 60)
    table.wait(10)
    assert backup.converter.next_message_sequence == active.converter.next_message_sequence
    assert_one_content_per_number(active, backup)


@pytest.mark.spec("SYNC-5")
def test_a_differing_state_is_set_to_the_active_adapters() -> None:
    table = started()
    table.feed(1, 10)
    backup = table[1]
    backup.converter.state.units["S3"] = -1
    backup.converter.state.units["X"] = 5
    table[0].said.clear()
    table.feed(11, 24)
    table.wait(5)
    table.feed(25, 40)
    images = [each.message for each in table[0].of_kind(SendPeer) if isinstance(each.message, ImageChunk)]
    assert set(_json(b"".join(each.data for each in images))) <= {"S3", "X", *_changed(11, 16)}  # not the whole state
    assert backup.converter.state.units == table[0].converter.state.units
    verdicts = [each.is_synchronised for each in backup.of_kind(SynchronisationChanged)]
    assert verdicts[-2:] == [False, True]


def _json(data: bytes) -> Any:
    import msgspec

    return msgspec.json.decode(data)


def _changed(first: int, last: int) -> set[str]:
    return {source(n).decode().split(":")[0] for n in range(first, last + 1)}
