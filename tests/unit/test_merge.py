"""Merging the copies of messages from several adapters."""

import sys
from typing import Any

import numpy
import pytest

from penstock.base.core import Tick
from penstock.base.counters import Cause
from penstock.base.errors import LocalProtocolError
from penstock.middleware import (
    DatagramsReceived,
    DeliverBatch,
    Discontinuity,
    LossReceipt,
    Merged,
    MergedBatch,
    MergeGap,
    Merger,
    MergerConfig,
    StartAfter,
    StreamKey,
)
from penstock.wire import DatagramBatch, Extension, OriginFlag, Packer, PacketMessage, encode_extensions
from penstock.wire._codec import PACKET_PUBLISHER_ID_AT
from penstock.wire.term import SESSION_TAG_SHIFT, session_tag
from unit.merge_kit import (
    NEXT,
    A,
    B,
    C,
    announcement,
    deliver,
    end,
    give,
    lose,
    message,
    messages_of,
    numbers_of,
    origin,
)
from unit.middleware_kit import MS, of, receiver


def suppressed(merger: Merger) -> dict[str, int]:
    return merger.counters.by_cause("messages_suppressed")


@pytest.mark.spec("SYNC-7")
def test_each_number_is_delivered_once_from_the_first_copy_and_continues_when_a_stream_falls_silent() -> None:
    merger = Merger()
    answers = give(merger, A, 1, 2, 3) + give(merger, B, 1, 2, 3, 4) + give(merger, A, 4, 5)
    assert numbers_of(answers) == [1, 2, 3, 4, 5]
    answers = give(merger, B, 5, 6, 7)  # A has died without a goodbye
    assert numbers_of(answers) == [6, 7]
    assert merger.next_deadline_ns() is None
    assert merger.counters["messages_merged"] == 7
    assert suppressed(merger) == {Cause.DUPLICATE: 5}


@pytest.mark.spec("SUB-2")
def test_a_loss_in_one_stream_is_filled_from_the_other_in_order() -> None:
    merger = Merger()
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    assert give(merger, A, 3, 4) == []
    assert numbers_of(give(merger, B, 2)) == [2, 3, 4]
    assert numbers_of(give(merger, A, 5)) == [5]
    assert merger.counters["messages_held"] == 2


@pytest.mark.spec("SUB-2")
def test_messages_that_no_stream_has_are_reported_lost_in_order() -> None:
    merger = Merger()
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    assert give(merger, A, 4) == []
    lose(merger, B)
    gap, *rest = give(merger, B, 5)
    assert gap == MergeGap(7, 1, 2, 3, Cause.GONE)
    assert numbers_of(rest) == [4, 5]
    assert merger.counters.by_cause("messages_lost") == {Cause.GONE: 2}


def test_a_single_stream_with_a_loss_does_not_wait() -> None:
    merger = Merger()
    give(merger, A, 1)
    lose(merger, A)
    gap, *rest = give(merger, A, 5)
    assert gap == MergeGap(7, 1, 2, 4, Cause.GONE)
    assert numbers_of(rest) == [5]


def test_the_end_of_the_only_stream_with_a_copy_ends_the_wait() -> None:
    merger = Merger()
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    give(merger, A, 3)
    gap, merged, ended = end(merger, B)
    assert gap == MergeGap(7, 1, 2, 2, Cause.GONE)
    assert numbers_of([merged]) == [3]
    assert ended.stream == B


def test_the_wait_for_a_silent_stream_is_bounded() -> None:
    merger = Merger(MergerConfig(wait_ms=10))
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    give(merger, A, 3, now_ns=5 * MS)
    assert merger.next_deadline_ns() == 15 * MS
    assert merger.handle(Tick(), 15 * MS - 1) == []
    gap, merged = merger.handle(Tick(), 15 * MS)
    assert gap == MergeGap(7, 1, 2, 2, Cause.NO_ANSWER)
    assert numbers_of([merged]) == [3]
    assert merger.next_deadline_ns() is None


@pytest.mark.parametrize("bound", [{"held_messages_max": 2}, {"held_bytes_max": 2}])
def test_held_messages_are_bounded(bound: dict[str, int]) -> None:
    merger = Merger(MergerConfig(**bound))
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    assert give(merger, A, 3, 4) == []
    gap, merged = give(merger, A, 5)
    assert gap == MergeGap(7, 1, 2, 2, Cause.WINDOW)
    assert numbers_of([merged]) == [3, 4, 5]


@pytest.mark.spec("AUTH-4")
def test_held_messages_are_bounded_across_source_streams() -> None:
    merger = Merger(MergerConfig(held_bytes_total_max=64 * 1024))
    answers: list[Any] = []
    for stream_id in range(1, 41):
        for branch in (A, B):
            answers += give(merger, branch, 1, stream=stream_id)
    lose(merger, A)
    for stream_id in range(1, 41):
        answers += give(merger, A, *range(3, 8), stream=stream_id)
        held = sum(source.count_held_bytes() for source in merger._sources.values())
        assert held == merger._budget.used <= 64 * 1024
    gaps = of(MergeGap, answers)
    assert 10 < len(gaps) < 40
    assert {each.cause for each in gaps} == {Cause.MEMORY}
    assert merger.counters.by_cause("messages_lost") == {Cause.MEMORY: len(gaps)}
    for stream_id in range(1, 41):
        answers += give(merger, B, 2, stream=stream_id)
    assert merger._budget.used == 0
    assert merger._budget.holders == {}
    assert len(messages_of(answers)) == 40 + 40 * 5 + (40 - len(gaps))


@pytest.mark.spec("AUTH-4")
def test_source_streams_whose_publishers_have_ended_are_evicted() -> None:
    merger = Merger(MergerConfig(source_streams_max=4))
    give(merger, A, 1, stream=1)
    for stream_id in (2, 3, 4):
        give(merger, C, 1, stream=stream_id)
    give(merger, A, 1, stream=4)
    assert give(merger, B, 1, stream=5) == []
    assert merger.counters.by_cause("messages_suppressed")[Cause.STREAM_LIMIT] == 1
    end(merger, C)
    assert numbers_of(give(merger, B, 1, stream=5)) == [1]
    assert numbers_of(give(merger, B, 1, stream=6)) == [1]
    assert give(merger, B, 1, stream=7) == [], "the others have publishers"
    assert numbers_of(give(merger, A, 2, stream=1) + give(merger, A, 2, stream=4)) == [2, 2]


@pytest.mark.spec("AUTH-4")
def test_a_merger_with_a_zero_limit_holds_nothing() -> None:
    merger = Merger(MergerConfig(held_bytes_total_max=1))
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    gap, merged = give(merger, A, 3)
    assert gap == MergeGap(7, 1, 2, 2, Cause.MEMORY)
    assert numbers_of([merged]) == [3]
    give(merger, A, 1, term=NEXT)  # of an unannounced lineage
    assert merger._budget.used == 0
    assert merger.next_deadline_ns() is None


def test_numbers_removed_by_a_filter_are_not_missing() -> None:
    merger = Merger()
    answers = give(merger, A, 2, 9) + give(merger, B, 2, 9, 14) + give(merger, A, 14, 20)
    assert numbers_of(answers) == [2, 9, 14, 20]
    assert not of(MergeGap, answers)


def test_an_unsynchronised_copy_is_ignored() -> None:
    merger = Merger()
    answers = give(merger, A, 1) + give(merger, B, 99, flags=0) + give(merger, A, 2) + give(merger, B, 3)
    assert numbers_of(answers) == [1, 2, 3]
    assert suppressed(merger) == {Cause.UNSYNCHRONISED: 1}


def test_the_merger_does_not_wait_for_an_unsynchronised_stream() -> None:
    merger = Merger()
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    give(merger, A, 3)
    gap, merged = give(merger, B, 2, flags=0)
    assert gap == MergeGap(7, 1, 2, 2, Cause.GONE)
    assert numbers_of([merged]) == [3]


@pytest.mark.spec("SYNC-7", "SYNC-8")
def test_a_promoted_backup_continues_the_lineage_under_a_new_term() -> None:
    merger = Merger()
    answers = give(merger, A, 1, 2) + give(merger, B, 1, 2) + give(merger, B, 3, 4, term=2) + give(merger, A, 3, 4, 5)
    assert numbers_of(answers) == [1, 2, 3, 4, 5]
    assert not of(Discontinuity, answers)


@pytest.mark.spec("SYNC-8")
def test_an_old_active_adapter_is_fenced_by_an_announced_discontinuity() -> None:
    merger = Merger()
    give(merger, A, 1, 2)
    merger.handle(deliver(B, [announcement(2, NEXT), message(3, term=NEXT, content=b"new")]), 0)
    assert give(merger, A, 3, 4, 5) == []
    assert suppressed(merger)[Cause.FENCED] == 3


def test_a_backup_that_is_ahead_when_it_is_promoted_stays_continuous() -> None:
    merger = Merger()
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, B)
    answers = give(merger, B, 4) + give(merger, B, 5, term=2)
    assert answers == []
    answers = end(merger, A)
    assert answers[0] == MergeGap(7, 2, 2, 3, Cause.GONE)
    assert numbers_of(answers) == [4, 5]


def test_a_discontinuity_names_the_next_number() -> None:
    merger = Merger()
    give(merger, A, 1, 2, 3)
    told, merged = merger.handle(deliver(A, [announcement(1, NEXT), message(2, term=NEXT, source=10)]), 0)
    assert told == Discontinuity(7, NEXT, 1, 0, "source_gap")
    assert numbers_of([merged]) == [2]
    assert give(merger, B, 4) == []
    assert merger.counters.by_cause("discontinuities") == {"source_gap": 1}


def test_held_messages_are_delivered_before_a_discontinuity_is_reported() -> None:
    merger = Merger()
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    give(merger, A, 3)
    assert merger.handle(deliver(A, [announcement(8, NEXT), message(9, term=NEXT)]), 0) == []
    first, told, last = give(merger, B, 2)
    assert numbers_of([first]) == [2, 3]
    assert told == Discontinuity(7, NEXT, 8, 0, "source_gap")
    assert numbers_of([last]) == [9]


def test_a_repeated_announcement_confirms_the_lineage_and_skips_nothing() -> None:
    merger = Merger()
    give(merger, A, 1, 2)
    give(merger, B, 1, 2)
    merger.handle(deliver(B, [announcement(2, NEXT, is_repeated=True), message(5, term=NEXT)]), 0)
    answers = merger.handle(deliver(A, [announcement(2, NEXT), *(message(n, term=NEXT) for n in (3, 4, 5))]), 0)
    assert numbers_of(answers) == [3, 4, 5]


def test_a_repeated_announcement_does_not_start_a_stream() -> None:
    merger = Merger()
    answers = merger.handle(deliver(B, [announcement(2, NEXT, is_repeated=True), message(50, term=NEXT)]), 0)
    assert numbers_of(answers) == [50]
    assert [type(answer) for answer in answers] == [Merged]


def test_an_unexplained_higher_term_is_a_discontinuity() -> None:
    merger = Merger(MergerConfig(wait_ms=10))
    give(merger, A, 1, 2)
    give(merger, B, 7, 8, term=NEXT)
    told, merged = merger.handle(Tick(), 10 * MS)
    assert told == Discontinuity(7, NEXT, 6, 7, "unseen")
    assert numbers_of([merged]) == [7, 8]


def test_a_message_delivered_under_another_number_is_a_duplicate() -> None:
    merger = Merger()
    give(merger, A, 1, 2, 3)
    told, merged = merger.handle(
        deliver(
            B, [announcement(10, NEXT, "promotion"), message(11, term=NEXT, source=3), message(12, term=NEXT, source=4)]
        ),
        0,
    )
    assert told.reason == "promotion"
    assert numbers_of([merged]) == [12]


@pytest.mark.parametrize(("session", "delivered"), [("monday", []), ("tuesday", [1])])
def test_a_new_session_restarts_the_numbers_of_source_messages(session: str, delivered: list[int]) -> None:
    """With or without the announcement, because every message has its session's tag."""
    merger = Merger()
    merger.handle(deliver(A, [message(1, source=5, flags=flags_in("monday"))]), 0)
    new = message(1, term=NEXT, source=1, flags=flags_in(session))
    answers = merger.handle(deliver(A, [announcement(0, NEXT, "promotion", session), new]), 0)
    assert numbers_of(answers) == delivered


def test_two_sessions_with_one_tag_are_distinguished_by_their_names() -> None:
    merger = Merger()
    flags = flags_in("monday")
    merger.handle(deliver(A, [announcement(0, 1, "session", "monday"), message(1, source=500, flags=flags)]), 0)
    new = message(1, term=NEXT, source=1, flags=flags)
    answers = merger.handle(deliver(A, [announcement(0, NEXT, "session", "tuesday"), new]), 0)
    assert numbers_of(answers) == [1]


def flags_in(session: str) -> int:
    return int(OriginFlag.SYNCHRONISED) | session_tag(session) << SESSION_TAG_SHIFT


@pytest.mark.parametrize("content", [b"{]", b'{"reason":"\xff"}', b'{"reason":"x","lost":' + b"[" * 2_000])
def test_a_discontinuity_with_an_unreadable_payload_still_counts(content: bytes) -> None:
    merger = Merger()
    give(merger, A, 1)
    bad = PacketMessage("penstock.discontinuity", content, extensions=announcement(4, NEXT).extensions)
    (told,) = merger.handle(deliver(A, [bad]), 0)
    assert told == Discontinuity(7, NEXT, 4, 0, "unknown")


def test_messages_without_an_origin_and_their_losses_are_passed_through() -> None:
    merger = Merger()
    plain = PacketMessage("t", b"plain")
    (merged,) = merger.handle(deliver(A, [plain]), 0)
    assert merged.messages == [plain]
    assert of(LossReceipt, lose(merger, A))
    assert of(LossReceipt, lose(merger, StreamKey(9, 9)))
    give(merger, B, 1)
    assert lose(merger, B) == []


def test_source_streams_do_not_wait_for_each_other() -> None:
    merger = Merger()
    for stream in (7, 8):
        give(merger, A, 1, stream=stream)
        give(merger, B, 1, stream=stream)
    lose(merger, A)
    assert give(merger, A, 3, stream=7) == []
    assert numbers_of(give(merger, A, 2, stream=8)) == [2]


def test_messages_included_in_an_image_are_not_delivered_again() -> None:
    merger = Merger()
    merger.handle(StartAfter(7, 1, 10), 0)
    answers = give(merger, A, 9, 10, 11) + give(merger, B, 11, 12)
    assert numbers_of(answers) == [11, 12]
    merger.handle(StartAfter(7, 1, 3), 0)
    assert numbers_of(give(merger, A, 12, 13)) == [13]


def test_images_are_passed_through_and_change_nothing() -> None:
    merger = Merger()
    give(merger, A, 1)
    flags = int(OriginFlag.SYNCHRONISED | OriginFlag.IMAGE)
    assert numbers_of(give(merger, A, 50, flags=flags)) == [50]
    assert numbers_of(give(merger, A, 2)) == [2]


def test_held_messages_are_copied() -> None:
    memory = bytearray(b"three")
    merger = Merger()
    give(merger, A, 1)
    give(merger, B, 1)
    lose(merger, A)
    merger.handle(deliver(A, [PacketMessage("t", memory, extensions=message(3).extensions)]), 0)
    memory[:] = b"XXXXX"
    assert [bytes(each.payload) for each in messages_of(give(merger, B, 2))] == [b"2", b"three"]


def batches(count: int, keys: tuple[StreamKey, ...], *, per_packet: int = 10, **options: Any) -> list[bytes]:
    """Packets of several publishers in turn, with the same messages."""
    packers = {key: Packer(key.publisher_id, key.group, 1) for key in keys}
    made = []
    for first in range(1, count, per_packet):
        for packer in packers.values():
            for number in range(first, first + per_packet):
                extensions = encode_extensions(message(number, **options).extensions)
                packer.add("t", b"content!", model_id=3, extensions=extensions)
            made.append(packer.flush())
    return made


def test_whole_batches_are_merged_without_message_objects() -> None:
    core, merger, batch = receiver(join="start"), Merger(), DatagramBatch(64)
    told: list = []
    for turn in (batches(40, (A, B)), batches(40, (C,))):
        batch.clear()
        for data in turn:
            batch.append(data, ("host", data[PACKET_PUBLISHER_ID_AT]))
        answers = [each for answer in core.handle(DatagramsReceived(batch), 0) for each in merger.handle(answer, 0)]
        told += numbers_of(answers)
        chosen = [each.messages for each in of(MergedBatch, answers)]
        assert all(len(each.records("V8", 3)) == len(each) == sum(each.packets["count"]) for each in chosen)
        assert [len(each.of_packet(n)) for each in chosen for n in range(each.packet_count)] == [
            count for each in chosen for count in each.packets["count"].tolist()
        ]
    assert told == list(range(1, 41))
    assert merger.counters["messages_merged"] == 40
    assert suppressed(merger) == {Cause.DUPLICATE: 80}


def test_batches_are_merged_whole_for_any_session_tag() -> None:
    core, merger, batch = receiver(join="start"), Merger(), DatagramBatch(64)
    flags = int(OriginFlag.SYNCHRONISED) | 77 << SESSION_TAG_SHIFT
    for data in batches(40, (A, B), flags=flags):
        batch.append(data, ("host", data[PACKET_PUBLISHER_ID_AT]))
    answers = [each for answer in core.handle(DatagramsReceived(batch), 0) for each in merger.handle(answer, 0)]
    assert numbers_of(answers) == list(range(1, 41))
    assert sum(len(each.messages) for each in of(MergedBatch, answers)) == 30  # the first packet starts its branch


def test_a_selected_batch_stays_valid_as_long_as_the_original() -> None:
    core, batch = receiver(join="start"), DatagramBatch(64)
    for data in batches(30, (A,)):
        batch.append(data, ("host", 1))
    whole = of(DeliverBatch, core.handle(DatagramsReceived(batch), 0))[-1].messages
    marks = numpy.arange(len(whole)) % 3 == 0
    chosen = whole.select(marks)
    assert [each.extensions for each in chosen] == [each.extensions for each in whole][::3]
    assert whole.select(numpy.ones(len(whole), bool)) is whole
    assert len(whole.select(~marks).select(numpy.zeros(len(whole) - len(chosen), bool))) == 0
    with pytest.raises(LocalProtocolError):
        whole.select(marks[1:])
    batch.clear()
    with pytest.raises(LocalProtocolError):
        list(chosen)


def test_invalid_origins_are_counted() -> None:
    merger = Merger(MergerConfig(source_streams_max=1))
    bad = PacketMessage("t", b"", extensions={Extension.ORIGIN: b"short"})
    assert merger.handle(deliver(A, [bad]), 0) == []
    assert give(merger, A, 0) == []
    give(merger, A, 1)
    assert give(merger, A, 1, stream=8) == []
    assert suppressed(merger) == {Cause.LENGTH: 1, Cause.UNEXPECTED: 1, Cause.STREAM_LIMIT: 1}
    assert origin(3).message_sequence == 3


def test_waiting_messages_of_a_newer_lineage_are_not_scanned_for_each_message() -> None:
    """For any number of waiting messages, a message has the same cost: counted in calls, not in time."""
    merger = Merger(MergerConfig(held_messages_max=4_096))
    give(merger, A, 1)

    def calls_of(first: int) -> int:
        count = 0

        def note(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(note)
        try:
            give(merger, B, *range(first, first + 100), term=NEXT)
        finally:
            sys.setprofile(None)
        return count

    early = calls_of(100)
    give(merger, B, *range(200, 2_200), term=NEXT)
    assert calls_of(2_200) < 2 * early
