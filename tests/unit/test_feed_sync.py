"""The rules that synchronise the adapters of a feed, one by one."""

from typing import Any

import msgspec
import pytest

from penstock.base.clock import NS_PER_MS
from penstock.base.core import Tick
from penstock.convert import SourceBatch
from penstock.feed.core.events import (
    HealthMeasured,
    LaneAdvanced,
    Paused,
    PeerConnected,
    PeerMessageReceived,
    PersistTerm,
    Promote,
    PublishConverted,
    ReturnToService,
    RoleChanged,
    SendPeer,
    ServiceChanged,
    SessionBegan,
    SessionOver,
    SynchronisationChanged,
    TermPersisted,
)
from penstock.feed.core.sync.follower import OTHER_PLAN
from penstock.feed.core.sync.health import Health
from penstock.feed.core.sync.messages import AdapterState, ImageBegin, ImageChunk, ImageRequest, StreamState
from penstock.wire import OriginFlag
from penstock.wire.term import Term, lineage, term_after_break
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


def test_the_lowest_index_starts_and_announces_it() -> None:
    table = started(3)
    assert table.active().index == 0
    assert announcements(table[0]) == [
        (Term(1, 0, 0, 0), b'{"reason":"start","lost":[],"session":"day 1","trading_date":""}')
    ]
    assert [each.core.is_synchronised(STREAM) for each in table.adapters.values()] == [True, True, True]


@pytest.mark.spec("SYNC-2")
def test_a_stream_without_messages_is_synchronised() -> None:
    table = Table(0)
    for index in range(2):
        table.start(index, session=None)
    table.wait(1_200)
    assert table.active().index == 0
    assert table[1].core.is_synchronised(STREAM)
    assert table[1].core.state(table.now_ns).is_synchronised
    for adapter in (table[1], table[0]):  # the first contribution, delivered to the backup first
        adapter.handle(SessionBegan(STREAM, "derived", 1))
        adapter.take(1, 3)
        table.settle()
    table.feed(4, 30)
    table.wait(1_000)
    assert table[1].core.is_synchronised(STREAM)
    assert_one_content_per_number(table[0], table[1])


def test_no_adapter_starts_while_others_may_still_connect() -> None:
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


# Reports of the active adapter, and their comparison by a backup


@pytest.mark.spec("SYNC-1")
def test_the_active_adapter_reports_numbers_state_and_health_to_each_backup() -> None:
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


@pytest.mark.spec("SYNC-2", "FEED-6")
def test_synchronised_adapters_assign_one_number_to_one_message() -> None:
    table = started(3)
    table.feed(1, 100)
    sent = [each.usable() for each in table.adapters.values()]
    assert len(sent[0]) > 50
    assert sent[0] == sent[1] == sent[2]


@pytest.mark.spec("SYNC-2")
def test_messages_of_an_unsynchronised_backup_are_marked() -> None:
    table = started(1)
    table.feed(1, 20)
    late = table.start(1, first=21)
    table.cut(0, 1)
    late.sent.clear()
    table.feed(21, 30)
    assert late.sent
    assert not late.usable()


@pytest.mark.spec("SYNC-2", "DAY-10")
def test_a_backup_with_another_conversion_plan_is_never_synchronised() -> None:
    table = started(2)
    table.feed(1, 20)
    backup = table[1]
    assert backup.core.is_synchronised(STREAM)
    backup.converter.plan_number = 2
    table.feed(21, 40)
    assert not backup.core.is_synchronised(STREAM)
    backup.sent.clear()
    table.feed(41, 60)
    table.wait(1_000)
    assert backup.sent
    assert not backup.usable()
    told = [each for each in backup.of_kind(SynchronisationChanged) if not each.is_synchronised]
    assert [each.why for each in told if "another table" in each.why] == [OTHER_PLAN]
    assert backup.core.counters.by_cause("messages_skipped")["other_plan"] > 1
    backup.converter.plan_number = 1
    table.feed(61, 80)
    table.wait(1_000)
    assert backup.core.is_synchronised(STREAM)
    assert_one_content_per_number(*table.adapters.values())


@pytest.mark.spec("SYNC-3")
def test_a_number_is_corrected_before_its_message_is_sent() -> None:
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
def test_a_backup_that_is_ahead_pauses_until_the_active_adapter_has_caught_up(every: int) -> None:
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
def test_a_different_state_is_replaced_by_the_active_adapters_state() -> None:
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
    assert set(msgspec.json.decode(b"".join(each.data for each in images))) <= {
        "S3",
        "X",
        *_changed(11, 16),
    }  # not the complete state
    assert backup.converter.state.units == table[0].converter.state.units
    verdicts = [each.is_synchronised for each in backup.of_kind(SynchronisationChanged)]
    assert verdicts[-2:] == [False, True]


def _changed(first: int, last: int) -> set[str]:
    return {source(n).decode().split(":")[0] for n in range(first, last + 1)}


# Losses and sessions


@pytest.mark.spec("SYNC-2")
def test_a_backup_that_lost_source_messages_sends_no_usable_message_until_repaired() -> None:
    table = started()
    table.feed(1, 20)
    active, backup = table[0], table[1]
    backup.lose(21, 23)
    assert not backup.core.is_synchronised(STREAM)
    table.feed(21, 23, only=[0])
    table.feed(24, 30)
    assert max(number for _, number in backup.usable()) < active.converter.next_message_sequence - 5
    table.wait(150)
    table.feed(31, 60)
    assert backup.core.is_synchronised(STREAM)
    assert backup.converter.state.units == active.converter.state.units
    assert_one_content_per_number(active, backup)


@pytest.mark.spec("SYNC-2")
def test_receivers_of_a_repaired_backup_learn_that_numbers_may_be_missing() -> None:
    """The messages of the backup are consecutive in its stream, so the announcement is the only sign."""
    table = started()
    table.feed(1, 20)
    backup = table[1]
    backup.lose(21, 23)
    table.feed(21, 23, only=[0])
    table.wait(300)
    assert backup.core.is_synchronised(STREAM)
    backup.sent.clear()
    table.feed(24, 30)
    assert len(announcements(backup)) == 0  # only once
    backup.lose(31, 33)
    table.feed(31, 33, only=[0])
    table.wait(300)
    table.feed(34, 40)
    at = next(n for n, (origin, _) in enumerate(backup.sent) if origin.source_sequence > 33)
    announced, before = backup.sent[at - 1][0], backup.sent[at - 2][0]
    assert announced.flags & ANNOUNCEMENT
    assert announced.flags & OriginFlag.IMAGE
    assert backup.sent[at][0].message_sequence > before.message_sequence + 1


@pytest.mark.spec("SYNC-8")
def test_an_active_adapter_that_lost_source_messages_hands_over_to_a_backup_that_has_them() -> None:
    table = started()
    table.feed(1, 20)
    table.feed(21, 26, only=[1])
    table[0].lose(21, 23)
    table.settle()
    assert (table[0].core.role, table[1].core.role) == ("backup", "active")
    assert Term.of(table[1].core.term) == Term(1, 0, 1, 1)
    assert len(announcements(table[1])) == 1  # the start, which it repeated when it joined
    table[0].take(24, 26)
    table.wait(200)
    table.feed(27, 60)
    assert table[0].core.is_synchronised(STREAM)
    assert_one_content_per_number(*table.adapters.values())


def test_an_active_adapter_without_a_successor_announces_its_losses_in_a_new_term() -> None:
    table = started(1)
    table.feed(1, 20)
    table[0].disk_waits = True
    table[0].lose(21, 23)
    table.feed(24, 26)
    assert len(table[0].usable()) == table[0].converter.next_message_sequence - 1  # held until the term is on the disk
    assert table[0].converter.next_source_sequence == 21
    table[0].handle(TermPersisted(int(Term(2, 0, 0, 0))))
    assert announcements(table[0])[-1] == (
        Term(2, 0, 0, 0),
        b'{"reason":"source_gap","lost":[[21,23]],"session":"day 1","trading_date":""}',
    )
    assert table[0].converter.next_source_sequence == 27


def test_a_new_session_is_announced_and_backups_follow_the_first_adapter_that_sees_it() -> None:
    table = started()
    table.feed(1, 20)
    table[1].handle(SessionBegan(STREAM, "day 2", 1))
    assert not table[1].core.is_synchronised(STREAM)
    table[0].handle(SessionBegan(STREAM, "day 2", 1))
    table.settle()
    assert announcements(table[0])[-1] == (
        Term(2, 0, 0, 0),
        b'{"reason":"session","lost":[],"session":"day 2","trading_date":""}',
    )
    table.feed(1, 20)
    table.wait(100)
    assert table[1].core.is_synchronised(STREAM)
    assert_one_content_per_number(*table.adapters.values())


@pytest.mark.spec("DAY-3", "SYNC-7")
def test_every_adapter_announces_the_end_of_a_session_alike_and_without_a_number() -> None:
    table = started()
    table.feed(1, 20)
    term, before = table[0].core.term, table[0].converter.next_message_sequence
    for adapter in table.adapters.values():
        adapter.handle(SessionOver(STREAM))
        adapter.handle(SessionOver(STREAM))  # a source may repeat it
    table.wait(100)
    for adapter in table.adapters.values():
        (said,) = [(origin, body) for origin, body in adapter.sent if b'"end"' in body]
        origin, body = said
        assert (origin.message_sequence, origin.source_sequence, origin.term) == (before - 1, 21, term)
        assert origin.flags & ANNOUNCEMENT
        assert body == b'{"reason":"end","lost":[],"session":"day 1","trading_date":""}'
        assert adapter.core.is_ended(STREAM)
    assert table[0].converter.next_message_sequence == before
    assert table[1].core.is_synchronised(STREAM)
    for adapter in table.adapters.values():
        adapter.handle(SessionBegan(STREAM, "day 2", 1))
    table.settle()
    assert not table[0].core.is_ended(STREAM)


@pytest.mark.spec("DAY-3", "SYNC-8")
def test_the_end_of_a_session_is_announced_after_held_messages() -> None:
    table = started(1)
    table.feed(1, 20)
    table[0].disk_waits = True
    table[0].lose(21, 23)
    table.feed(24, 26)
    table[0].handle(SessionOver(STREAM))
    assert not table[0].core.is_ended(STREAM)
    table[0].handle(TermPersisted(int(Term(2, 0, 0, 0))))
    assert [b'"end"' in body for _, body in announcements(table[0])][-2:] == [False, True]
    assert b'"end"' in table[0].sent[-1][1]  # after the held messages


# Takeover


@pytest.mark.spec("SYNC-8")
def test_the_healthiest_synchronised_backup_takes_over_and_the_others_follow() -> None:
    table = started(4)
    table[1].handle(HealthMeasured(Health(cpu_free=0.1)))
    table.wait(150)
    table.feed(1, 20)
    table.kill(0)
    assert Term.of(table[2].core.term) == Term(1, 0, 1, 2)
    assert [each.core.role for each in table.adapters.values()] == ["backup", "active", "backup"]
    table.feed(21, 40)
    assert all(each.core.is_synchronised(STREAM) for each in table.adapters.values())
    assert not any(len(announcements(each)) > 1 for each in table.adapters.values())
    assert_one_content_per_number(*table.adapters.values())


@pytest.mark.spec("SYNC-8", "SYNC-9")
def test_a_returning_adapter_joins_as_a_backup_and_gets_the_complete_state() -> None:
    table = started()
    table.feed(1, 50)
    term = table[0].disk
    table.kill(0)
    table.feed(51, 60)
    back = table.start(0, term=term, first=61)
    assert (back.core.role, back.core.is_synchronised(STREAM)) == ("backup", False)
    table.feed(61, 70)
    table.wait(150)
    table.feed(71, 90)
    table.wait(150)
    assert (back.core.role, back.core.is_synchronised(STREAM)) == ("backup", True)
    assert back.converter.state.units == table[1].converter.state.units
    assert_one_content_per_number(*table.adapters.values())


@pytest.mark.spec("SYNC-8", "SYNC-9")
@pytest.mark.parametrize("is_heard", [True, False])
def test_a_returning_adapter_waits_for_the_state_of_a_connected_adapter(is_heard: bool) -> None:
    table = started()
    term = table[0].disk
    table.kill(0)
    table.wait(200)
    active = table.active()
    assert active.index == 1
    back = table.adapters[0] = Adapter(table, 0, term)
    table.now_ns += 900 * NS_PER_MS
    back.handle(PeerConnected(1))
    table.now_ns += 200 * NS_PER_MS  # startup_ms has passed, and the state of the active adapter is still under way
    back.handle(Tick())
    assert back.of_kind(PersistTerm) == []
    if is_heard:
        back.handle(PeerMessageReceived(1, active.core.state(table.now_ns)))
        assert (back.core.role, back.core.term) == ("backup", active.core.term)
    else:
        deadline_ns = back.core.next_deadline_ns()
        while (
            deadline_ns is not None and deadline_ns < table.now_ns + 2_000 * NS_PER_MS and not back.of_kind(PersistTerm)
        ):
            table.now_ns = max(table.now_ns, deadline_ns)
            back.handle(Tick())
            deadline_ns = back.core.next_deadline_ns()
        assert back.of_kind(PersistTerm) == [PersistTerm(int(term_after_break(term, 0)))]


@pytest.mark.spec("SYNC-9")
def test_an_adapter_that_returns_while_the_source_is_silent_gets_the_state() -> None:
    table = started()
    table.feed(1, 50)
    term = table[0].disk
    table.kill(0)
    back = table.start(0, term=term, first=1)
    table.wait(1_000)
    assert (back.core.role, back.core.is_synchronised(STREAM)) == ("backup", True)
    assert back.converter.state.units == table[1].converter.state.units


@pytest.mark.spec("SYNC-8")
@pytest.mark.parametrize("policy", ["wait", "promote"])
def test_without_a_synchronised_backup_the_policy_decides_and_the_result_is_reported(policy: str) -> None:
    table = started(without_synchronised=policy)
    table.feed(1, 20)
    table[1].lose(21, 22)
    table.kill(0)
    table.wait(3_000)
    if policy == "wait":
        assert table[1].core.role == "backup"
        table[1].handle(Promote())
        table.settle()
    assert table[1].core.role == "active"
    assert announcements(table[1])[-1] == (
        Term(2, 1, 0, 1),
        b'{"reason":"promotion","lost":[[21,22]],"session":"day 1","trading_date":""}',
    )


@pytest.mark.spec("SYNC-8")
def test_a_backup_with_a_different_state_is_skipped() -> None:
    table = started(3)
    table.feed(1, 20)
    table[1].lose(21, 21)
    table[1].handle(HealthMeasured(Health()))
    table[2].handle(HealthMeasured(Health(cpu_free=0.0)))
    table.feed(22, 23, only=[1])
    table.wait(10)
    table.kill(0)
    assert table.active().index == 2


@pytest.mark.spec("SYNC-8")
def test_two_active_adapters_after_a_partition_merge_and_never_contradict_each_other() -> None:
    table = started(3)
    table.feed(1, 20)
    table.cut(0, 1)
    table.cut(0, 2)
    table.feed(21, 40)
    assert sorted(each.core.role for each in table.adapters.values()) == ["active", "active", "backup"]
    assert_one_content_per_number(*table.adapters.values())
    table.connect(0, 1)
    table.connect(0, 2)
    assert table.active().index == 1
    assert "steps down" in [each.why for each in table[0].of_kind(RoleChanged)]
    table.feed(41, 60)
    table.wait(150)
    assert all(each.core.is_synchronised(STREAM) for each in table.adapters.values())
    assert_one_content_per_number(*table.adapters.values())


def test_a_backup_that_only_lost_its_channel_does_not_take_over() -> None:
    table = started(3)
    table.cut(0, 1)
    table.wait(2_000)
    assert table.active().index == 0


# Repair


@pytest.mark.spec("SYNC-9")
def test_when_the_active_adapter_dies_during_an_image_the_next_one_sends_it_again() -> None:
    table = started(2, image_chunk_size=256, image_bytes_per_s=1_000)
    table.feed(1, 200)
    late = table.start(2, first=201)
    table.feed(201, 210)
    table.wait(20)
    assert [each for each in late.of_kind(SendPeer) if isinstance(each.message, ImageRequest)]
    assert not late.core.is_flowing(STREAM)
    table.kill(0)
    assert table.active().index == 1
    for first in range(211, 311, 10):
        table.feed(first, first + 9)
        table.wait(500)
    assert late.core.is_synchronised(STREAM)
    assert late.converter.state.units == table[1].converter.state.units
    assert_one_content_per_number(*table.adapters.values())


@pytest.mark.parametrize(
    ("held", "is_asked_again"), [({"held_messages_max": 5}, True), ({"held_messages_max": 1_000}, False)]
)
def test_updates_during_an_image_are_kept_or_another_image_is_requested(
    held: dict[str, Any], is_asked_again: bool
) -> None:
    table = started(1, image_chunk_size=256, image_bytes_per_s=10_000, image_timeout_ms=60_000, **held)
    table.feed(1, 200)
    late = table.start(1, first=201)
    table.feed(201, 220)
    table.wait(5)
    table.feed(221, 260)
    table.wait(2_000)
    table.feed(261, 300)
    table.wait(2_000)
    requests = [each for each in late.of_kind(SendPeer) if isinstance(each.message, ImageRequest)]
    assert (len(requests) > 1) == is_asked_again
    assert late.core.is_synchronised(STREAM)
    assert_one_content_per_number(*table.adapters.values())


# Going off-line


@pytest.mark.spec("SYNC-6")
@pytest.mark.parametrize(
    ("policy", "others", "is_online"),
    [
        ("lowest", [0.5, 0.9], False),
        ("lowest", [0.1, 0.9], True),
        ("lower-than-any", [0.1, 0.9], False),
        ("lower-than-any", [0.1, 0.2], True),
    ],
)
def test_an_unsynchronised_backup_with_low_health_goes_off_line(
    policy: str, others: list[float], is_online: bool
) -> None:
    table = started(4, offline=policy, unsynchronised_max=5)
    for index, cpu_free in zip((1, 2, 3), (0.3, *others), strict=True):
        table[index].handle(HealthMeasured(Health(cpu_free=cpu_free)))
    table.wait(150)
    backup = table[1]
    backup.core._streams[STREAM]._failures = 4
    backup.converter.state.units["wrong"] = 1
    table.feed(1, 16)
    assert backup.core.state(table.now_ns).is_online is is_online
    assert bool(backup.of_kind(ServiceChanged)) is not is_online
    if is_online:
        return
    backup.sent.clear()
    table.feed(17, 24)
    assert not backup.sent
    for index in (0, 2, 3):
        table.kill(index)
    table.wait(3_000)
    assert backup.core.role == "backup"
    backup.handle(ReturnToService())
    table.wait(3_000)
    assert backup.core.role == "active"


@pytest.mark.spec("SYNC-6")
def test_a_discontinuity_resets_the_count_of_failed_comparisons() -> None:
    table = started(4, unsynchronised_max=5)
    table[1].handle(HealthMeasured(Health(cpu_free=0.3)))
    table.wait(150)
    table.feed(1, 8)
    backup = table[1]
    backup.core._streams[STREAM]._failures = 4
    backup.said.clear()
    for index in (3, 2, 1, 0):
        table[index].lose(9, 9)  # no backup can take over: the active adapter begins a new lineage
    table.settle()
    table.feed(10, 40)
    table.wait(1_000)
    assert [each.why for each in backup.of_kind(SynchronisationChanged)][-1] == "numbers and state match"
    assert not backup.of_kind(ServiceChanged)


# Drivers


def test_a_driver_may_convert_by_itself_in_the_normal_case() -> None:
    table = started()
    active, backup = table[0], table[1]
    assert active.core.is_flowing(STREAM)
    assert backup.core.is_flowing(STREAM)
    active.take(1, 30)
    table.settle()
    batch = SourceBatch.from_messages([source(n) for n in range(1, 31)], 1)
    backup.converter.convert(batch)
    backup.converter.state.units["wrong"] = 1
    backup.handle(LaneAdvanced(STREAM))
    table.settle()
    assert backup.core.is_synchronised(STREAM)  # the checkpoints that it passed were correct
    active.take(31, 40)
    backup.converter.convert(SourceBatch.from_messages([source(n) for n in range(31, 41)], 31))
    backup.handle(LaneAdvanced(STREAM))
    table.settle()
    assert not backup.core.is_synchronised(STREAM)
    assert not backup.core.is_flowing(STREAM)


def test_outputs_of_one_event_do_not_share_memory() -> None:
    table = started()
    backup = table[1]
    backup.core._streams[STREAM].unsynchronise("for the test")
    table.feed(1, 12, only=[0])
    backup.take(1, 12)
    outputs = [each for each in backup.said if isinstance(each, PublishConverted)]
    assert len(outputs) > 1
    made = [payload for origin, payload in backup.sent if not origin.flags & ANNOUNCEMENT]
    assert len(set(made)) == len(made)


def test_messages_under_a_wrong_name_or_without_a_subject_are_ignored() -> None:
    table = started()
    backup, now_ns = table[1], table.now_ns
    state = backup.core.state(now_ns)
    term = backup.core.term
    for event in (
        PeerMessageReceived(0, AdapterState(5, 2**31, True, True, True, True, 0)),
        PeerMessageReceived(7, state),
        PeerMessageReceived(0, StreamState(term, 99, "day 1", 1, 1, 0)),
        PeerMessageReceived(0, StreamState(term - 1, STREAM, "day 1", 1, 1, 0)),
        PeerMessageReceived(0, ImageChunk(STREAM, 77, 0, b"x")),
        PeerMessageReceived(0, ImageBegin(term, STREAM, 77, "day 1", 1, 1, 0)),
        PeerMessageReceived(0, ImageRequest(term, STREAM, 1, 0, b"odd")),
    ):
        backup.handle(event)
        table[0].handle(event)
    assert backup.core.is_synchronised(STREAM)
    assert backup.core.counters["messages_skipped"] >= 4


@pytest.mark.spec("FEED-5")
def test_health_is_one_number_that_decreases_with_every_problem() -> None:
    best = Health()
    assert best.score() == 1_000
    worse = [
        Health(memory_free=0.5),
        Health(cpu_free=0.5),
        Health(errors_per_s=5),
        Health(transmission=0.5),
        Health(lag_ns=5_000_000),
    ]
    assert all(800 <= each.score() < 1_000 for each in worse)
    assert Health(memory_free=-1, cpu_free=-1, errors_per_s=1e9, transmission=-1, lag_ns=10**15).score() == 0
