"""Any order, any repetition, any loss: the messages of a stream stay complete and in order."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.base.core import Tick
from penstock.middleware import Deliver, LossReceipt, Receiver
from penstock.wire import restamp
from unit.middleware_kit import contents, of, packets, receiver, take

SENT = packets(20)


def finish(core: Receiver) -> list:
    """Let every request go unanswered."""
    answers: list = []
    for _ in range(1_000):
        now_ns = core.next_deadline_ns()
        if now_ns is None:
            break
        answers += core.handle(Tick(), now_ns)
    return answers


@given(st.permutations(range(20)), st.lists(st.integers(0, 19)))
def test_every_order_with_repetitions_is_delivered_once_and_in_order(order: list[int], again: list[int]) -> None:
    core = receiver(join="start")
    answers = take(core, [SENT[n] for n in [*order, *again]])
    assert contents(answers) == [str(n + 1) for n in range(20)]
    assert core.counters.by_cause("packets_dropped").get("duplicate", 0) == len(again)


@given(st.permutations(range(20)), st.sets(st.integers(0, 19)))
def test_what_never_comes_is_reported_once_in_its_place(order: list[int], lost: set[int]) -> None:
    core = receiver(join="start")
    answers = take(core, [SENT[n] for n in order if n not in lost]) + finish(core)
    told = []
    for answer in answers:
        if isinstance(answer, Deliver):
            told += [(n, "delivered") for n in range(answer.first, answer.sequence + 1)]
        elif isinstance(answer, LossReceipt):
            told += [(n, "lost") for n in range(answer.first, answer.last + 1)]
    newest = max(set(range(20)) - lost, default=-1)
    assert told == [(n + 1, "lost" if n in lost else "delivered") for n in range(newest + 1)]
    assert len(of(LossReceipt, answers)) <= len(lost)


@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 25)), max_size=60))
def test_whatever_filters_say_the_story_has_no_hole_and_the_window_is_bounded(packets: list[tuple[int, int]]) -> None:
    core = receiver(join="start", window_packets_max=8)
    data = [restamp(SENT[n], gap=gap) for n, gap in packets]
    next_sequence = 1
    for answer in take(core, data) + finish(core):
        if isinstance(answer, Deliver | LossReceipt):
            assert answer.first == next_sequence
            next_sequence = (answer.sequence if isinstance(answer, Deliver) else answer.last) + 1
    accepted = [n + 1 for n, gap in packets if gap < n + 1]
    assert next_sequence == max(accepted, default=0) + 1
