"""With any losses, interleaving and failures of the streams: every message once, in order, or a receipt."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.core import Tick
from penstock.middleware import (
    DatagramsReceived,
    DeliverBatch,
    Discontinuity,
    MergeGap,
    Merger,
    MergerConfig,
    StreamKey,
)
from penstock.wire import DatagramBatch, Packer, PacketMessage, encode_extensions
from penstock.wire.term import Term
from unit.merge_kit import NEXT, A, B, C, announcement, deliver, end, lose, message, messages_of, numbers_of
from unit.middleware_kit import receiver

COUNT = 30
KEYS = (A, B, C)

lossy = st.sets(st.integers(2, COUNT), max_size=12)


def story(answers: list) -> list[tuple[str, int]]:
    """The application's output, number by number."""
    told = []
    for answer in answers:
        if isinstance(answer, MergeGap):
            told += [("lost", number) for number in range(answer.first, answer.last + 1)]
        else:
            told += [("delivered", number) for number in numbers_of([answer])]
    return told


def steps(numbers: list[int], lost: set[int], terms: dict[int, int]) -> Iterator[tuple]:
    """A publisher's stream, message by message, as calls of the merger."""
    for number in numbers:
        if number in lost:
            yield (lose, ())
        else:
            yield (send, (number, terms[number]))


def send(merger: Merger, key: object, number: int, term: int) -> list:
    return merger.handle(deliver(key, [message(number, term=term)]), 0)


def run(merger: Merger, streams: dict, order: list[int]) -> list:
    """Run the streams in this order until each is exhausted, then in turn."""
    left = {key: iter(each) for key, each in streams.items()}
    keys = list(streams)
    answers: list = []
    for key in [keys[n % len(keys)] for n in order] + keys * (COUNT + 1):
        if (step := next(left[key], None)) is not None:
            act, arguments = step
            answers += act(merger, key, *arguments)
    return answers


def finish(merger: Merger) -> list:
    answers: list = []
    for _ in range(COUNT * len(KEYS)):
        if (deadline_ns := merger.next_deadline_ns()) is None:
            break
        answers += merger.handle(Tick(), deadline_ns)
    assert merger.next_deadline_ns() is None
    return answers


@pytest.mark.spec("SYNC-7", "SUB-2")
@given(
    st.lists(lossy, min_size=2, max_size=3),
    st.lists(st.integers(0, 2), max_size=3 * COUNT),
    st.sets(st.integers(2, COUNT), max_size=20),
)
def test_what_any_stream_has_is_delivered_and_what_none_has_is_reported(
    losses: list[set[int]], order: list[int], filtered: set[int]
) -> None:
    merger = Merger()
    numbers = [number for number in range(1, COUNT + 1) if number not in filtered]
    terms = dict.fromkeys(numbers, 1)
    keys = KEYS[: len(losses)]
    answers = [answer for key in keys for answer in send(merger, key, 1, 1)]
    streams = {key: list(steps(numbers[1:], lost, terms)) for key, lost in zip(keys, losses, strict=True)}
    answers += run(merger, streams, order) + finish(merger)
    told = story(answers)
    everywhere_lost = set.intersection(*losses) & set(numbers)
    assert [number for what, number in told if what == "delivered"] == [
        number for number in numbers if number not in everywhere_lost
    ]
    assert [number for _, number in told] == sorted({number for _, number in told})
    reported = {number for what, number in told if what == "lost"}
    newest = max(number for number in numbers if number not in everywhere_lost)
    assert {number for number in everywhere_lost if number < newest} <= reported <= everywhere_lost | filtered


@pytest.mark.spec("SYNC-7", "SYNC-8")
@given(
    st.integers(2, COUNT),
    st.integers(0, COUNT),
    st.lists(st.integers(0, 2), max_size=3 * COUNT),
    st.sets(st.integers(2, COUNT), max_size=20),
    st.booleans(),
    lossy,
)
def test_a_kill_at_any_point_loses_nothing_and_repeats_nothing(
    killed_at: int, promoted_after: int, order: list[int], filtered: set[int], is_told: bool, third_lost: set[int]
) -> None:
    """Stream A dies at any point. Stream B has no gap and takes over with a new term; C follows B, with any losses."""
    merger = Merger()
    numbers = [number for number in range(1, COUNT + 1) if number not in filtered]
    terms = {number: 1 if number <= killed_at + promoted_after else int(Term(0, 0, 1, 1)) for number in numbers}
    answers = [answer for key in KEYS for answer in send(merger, key, 1, 1)]
    streams = {
        A: list(steps([number for number in numbers[1:] if number < killed_at], set(), dict.fromkeys(numbers, 1))),
        B: list(steps(numbers[1:], set(), terms)),
        C: list(steps(numbers[1:], third_lost, terms)),
    }
    if is_told:
        streams[A].append((end, ()))
    answers += run(merger, streams, order) + finish(merger)
    assert story(answers) == [("delivered", number) for number in numbers]
    assert not [answer for answer in answers if isinstance(answer, Discontinuity)]


steps_of_anything = st.one_of(
    st.tuples(
        st.sampled_from(KEYS),
        st.just("message"),
        st.integers(0, 12),  # number
        st.sampled_from([1, 2, NEXT, NEXT + 1, 2 * NEXT]),  # term
        st.sampled_from([1, 1, 1, 0, 3]),  # flags
    ),
    st.tuples(st.sampled_from(KEYS), st.sampled_from(["lose", "end", "tick"])),
)


@given(st.lists(steps_of_anything, max_size=60))
def test_whatever_is_said_numbers_rise_within_a_term_and_what_is_held_is_bounded(said: list[tuple]) -> None:
    merger = Merger(MergerConfig(held_messages_max=4, wait_ms=1))
    answers: list = []
    now_ns = 0
    for key, what, *rest in said:
        now_ns += 400_000
        if what == "message":
            number, term, flags = rest
            answers += merger.handle(deliver(key, [message(number, term=term, flags=flags)]), now_ns)
        elif what == "tick":
            answers += merger.handle(Tick(), now_ns)
        else:
            answers += {"lose": lose, "end": end}[what](merger, key)
    answers += finish(merger)
    last = None
    announced = 0
    for answer in answers:
        if isinstance(answer, Discontinuity):
            last = answer.message_sequence
            announced += answer.reason != "unseen"
        elif isinstance(answer, MergeGap):
            assert answer.first > last  # a message in between may have been delivered under another number
            assert answer.last >= answer.first
            last = answer.last
        else:
            for number in numbers_of([answer]):
                assert last is None or number > last
                last = number
    given_count = sum(what == "message" for _, what, *_ in said)
    assert given_count == announced + merger.counters["messages_merged"] + merger.counters["messages_suppressed"]


def packet(packer: Packer, messages: list[PacketMessage]) -> bytes:
    for each in messages:
        packer.add(each.topic, each.payload, extensions=encode_extensions(each.extensions))
    made = packer.flush()
    assert made is not None
    return made


def plain(answers: list) -> list:
    """The application's output, message by message."""
    told: list = []
    for answer in answers:
        messages = messages_of([answer])
        told += [(each.topic, bytes(each.payload), each.extensions, each.sequence) for each in messages]
        told += [] if messages else [answer]
    return told


packets = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.lists(
            st.one_of(
                st.tuples(st.just("next"), st.integers(0, 2), st.just(1)),
                st.tuples(st.just("any"), st.integers(0, 30), st.sampled_from([1, 1, 1, 0, 5])),
                st.tuples(st.sampled_from(["announcement", "plain", "term"]), st.integers(0, 30), st.just(1)),
            ),
            min_size=1,
            max_size=6,
        ),
        st.sampled_from(["", "", "", "", "lose", "end"]),
    ),
    max_size=40,
)


@given(packets, st.lists(st.integers(1, 8), min_size=1))
def test_the_fast_path_says_what_the_core_says(sent: list[tuple], sizes: list[int]) -> None:
    fast, slow = Merger(), Merger()
    source = receiver(join="start")
    packers = {key: Packer(key.publisher_id, key.group, 1) for key in KEYS}
    numbers = dict.fromkeys(KEYS, 0)
    terms = dict.fromkeys(KEYS, 1)
    batch = DatagramBatch(64)
    said: tuple[list, list] = ([], [])

    def flush() -> None:
        for answer in source.handle(DatagramsReceived(batch), 0):
            said[0].extend(plain(fast.handle(answer, 0)))
            for each in answer.one_by_one() if isinstance(answer, DeliverBatch) else [answer]:
                said[1].extend(plain(slow.handle(each, 0)))
        batch.clear()

    def make(key: StreamKey, what: str, number: int, flags: int) -> PacketMessage:
        if what == "plain":
            return PacketMessage("t", b"plain")
        if what == "announcement":
            terms[key] = terms[key] // NEXT * NEXT + NEXT
            numbers[key] = number
            return announcement(number, terms[key])
        terms[key] += what == "term"
        numbers[key] = numbers[key] + 1 + number if what == "next" else number
        return message(numbers[key], term=terms[key], flags=flags)

    for index, (key, messages, then) in enumerate(sent):
        batch.append(packet(packers[key], [make(key, *each) for each in messages]), ("host", key.publisher_id))
        if then or len(batch) >= sizes[index % len(sizes)]:
            flush()
        if then:
            for merger, told in zip((fast, slow), said, strict=True):
                told.extend(plain({"lose": lose, "end": end}[then](merger, key)))
    flush()
    assert said[0] == said[1]
    for name in ("messages_merged", "messages_suppressed", "messages_held", "messages_lost", "discontinuities"):
        assert fast.counters.by_cause(name) == slow.counters.by_cause(name)
