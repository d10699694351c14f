"""The interest table: matches, refusals and costs."""

import re
import threading
from collections.abc import Callable

import numpy
import numpy.typing as npt
import pytest

from penstock.base.errors import LimitError, LocalProtocolError, TopicError
from penstock.topics import Interest, InterestTable, TableLimits
from penstock.topics import regexes as regexes_module
from penstock.topics import table as table_module
from penstock.topics.regexes import RegexInterests
from penstock.topics.topic import check_topic

SEED = bytes(range(16))


def batch(*topics: bytes) -> tuple[bytes, npt.NDArray[numpy.uint32], npt.NDArray[numpy.uint16]]:
    sizes = numpy.array([len(topic) for topic in topics], dtype=numpy.uint16)
    offsets = numpy.concatenate([[0], numpy.cumsum(sizes[:-1])]).astype(numpy.uint32)
    return b"".join(topics), offsets, sizes


def match_batch(table: InterestTable, *topics: bytes) -> list[list[int]]:
    bounds, subscribers = table.match_batch(*batch(*topics))
    return [sorted(subscribers[bounds[i] : bounds[i + 1]].tolist()) for i in range(len(topics))]


@pytest.mark.parametrize(
    ("interest", "wanted", "unwanted"),
    [
        ("md.us", ["md.us"], ["md", "md.us.eq", "md.u", "md.usx"]),
        ("md.*", ["md.us", "md.x"], ["md", "md.us.eq"]),
        ("*", ["md"], ["md.us"]),
        ("md.>", ["md.us", "md.us.eq"], ["md", "mdx.us"]),
        (">", ["md", "md.us"], []),
        ("*.>", ["md.us"], ["md"]),
        ("md.AA*.q", ["md.AA.q", "md.AAPL.q"], ["md.A.q", "md.ABA.q", "md.AAPL.t"]),
        ("md.Bö*", ["md.Börse"], ["md.Bourse"]),
        ("book.[100..200]", ["book.100", "book.150", "book.200"], ["book.99", "book.201", "book.0100", "book.1e2"]),
        ("book.[100..]", ["book.100", "book.18446744073709551615"], ["book.99", "book.18446744073709551616"]),
        ("book.[..5]", ["book.0", "book.5"], ["book.6", "book.00", "book.-1", "book.x"]),
        ("a.[0..18446744073709551615].b", ["a.0.b", "a.18446744073709551615.b"], ["a.99999999999999999999.b", "a.x.b"]),
        ("/md[.](us|eu)[.].*/", ["md.us.eq", "md.eu.x.y"], ["md.us", "xmd.us.eq"]),
    ],
)
def test_interests_match_their_topics(interest: str, wanted: list[str], unwanted: list[str]) -> None:
    table = InterestTable(seed=SEED)
    assert table.add(interest, 3)
    for topic in wanted:
        assert table.match(topic) == [3], topic
    for topic in unwanted:
        assert table.match(topic) == [], topic
    assert match_batch(table, *map(str.encode, wanted + unwanted)) == [[3]] * len(wanted) + [[]] * len(unwanted)


def test_tags() -> None:
    table = InterestTable(seed=SEED)
    table.add("#halted", 1)
    table.add("md.>", 2)
    table.add("!#halted", 2)
    assert table.match("md.us") == [2]
    assert table.match("md.us", ["other", "halted"]) == [1]
    assert table.match("halted") == []


def test_a_text_is_not_accepted_as_a_list_of_tags() -> None:
    with pytest.raises(TopicError, match=re.escape("write ['halted']")):
        InterestTable(seed=SEED).match("md.us", "halted")


def test_a_table_without_a_seed_chooses_a_random_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    monkeypatch.setattr(table_module, "random_bytes", lambda size: sizes.append(size) or SEED)
    InterestTable()
    assert sizes == [16]


@pytest.mark.parametrize("positive", ["md.us", "md.*", "md.>", "md.u*", "/md.*/", "#t"])
@pytest.mark.parametrize("negative", ["!md.us", "!*.us", "!>", "!md.us*", "!/.*us/", "!#t"])
def test_a_negative_interest_outweighs_every_positive_one(positive: str, negative: str) -> None:
    table = InterestTable(seed=SEED)
    table.add(positive, 1)
    table.add(positive, 2)
    table.add(negative, 2)
    assert table.match("md.us", ["t"]) == [1]
    table.remove(negative, 2)
    assert table.match("md.us", ["t"]) == [1, 2]


def test_a_subscriber_is_found_once_however_many_interests_match() -> None:
    table = InterestTable(seed=SEED)
    for interest in ["a.b", "a.*", "a.>", "*.b", "/a.b/", "/a.*/"]:
        table.add(interest, 5)
    assert table.match("a.b") == [5]
    assert match_batch(table, b"a.b", b"a.b") == [[5], [5]]


def test_adding_twice_and_removing_twice() -> None:
    table = InterestTable(seed=SEED)
    for interest in ["a", "a.*", "a.[1..6].*", "/a+/", "#a", "!a"]:
        assert table.add(interest, 1)
        assert not table.add(Interest.parse(interest), 1)
        assert table.add(interest, 2)
    assert len(table) == 12
    for interest in ["a", "a.*", "a.[1..6].*", "/a+/", "#a", "!a"]:
        assert table.remove(interest, 1)
        assert not table.remove(interest, 1)
        assert not table.remove(interest, 3)
    assert len(table) == 6


def test_ranges_that_share_blocks_are_independent() -> None:
    table = InterestTable(seed=SEED)
    table.add("a.[4..7]", 1)
    table.add("a.[4..8]", 1)
    table.remove("a.[4..7]", 1)
    assert [table.match(f"a.{number}") for number in (3, 4, 7, 8, 9)] == [[], [1], [1], [1], []]
    assert table.remove_subscriber(1) == 1
    assert table.match("a.5") == []


def test_topics_need_no_registration_and_leave_no_state() -> None:
    table = InterestTable(seed=SEED)
    table.add("new.>", 1)
    node_count = table._kernel.node_count
    assert match_batch(table, *(f"new.topic.{number}".encode() for number in range(1_000))) == [[1]] * 1_000
    assert table._kernel.node_count == node_count


def test_many_subscribers_of_one_topic() -> None:
    table = InterestTable(seed=SEED)
    for subscriber in reversed(range(1000)):
        table.add("a.b", subscriber)
    table.add("!a.b", 7)
    assert table.match("a.b") == [subscriber for subscriber in range(1000) if subscriber != 7]
    for subscriber in range(999):
        table.remove("a.b", subscriber)
    assert table.match("a.b") == [999]


def test_a_subscriber_that_is_removed_leaves_no_state() -> None:
    table = InterestTable(seed=SEED)
    interests = ["a", "!a", "a.*", "a.b*.c", "a.>", "b.[1..100].*", "!b.[1..100].*", "/x+/", "#t", "!#t"]
    for interest in interests:
        table.add(interest, 1)
        table.add(interest, 2)
    assert table.remove_subscriber(1) == len(interests)
    assert len(table) == len(interests)
    assert table.remove_subscriber(2) == len(interests)
    assert table.remove_subscriber(2) == 0
    assert len(table) == 0
    assert table._kernel.node_count == 1  # the root


def test_repeated_adding_and_removing_does_not_grow_the_table() -> None:
    table = InterestTable(seed=SEED)

    def churn() -> None:
        for number in range(2_000):
            for interest in (f"a.{number}", f"a.{number}.*", f"b.x{number}*.>", f"c.[{number}..{number + 50}]"):
                table.add(interest, number % 7)
        for number in range(2_000):
            for interest in (f"a.{number}", f"a.{number}.*", f"b.x{number}*.>", f"c.[{number}..{number + 50}]"):
                assert table.remove(interest, number % 7)

    churn()
    memory_bytes = table.memory_bytes
    churn()
    assert table.memory_bytes == memory_bytes
    assert table._kernel.node_count == 1


def test_add_many_accepts_every_kind() -> None:
    table = InterestTable(seed=SEED)
    interests = ["a.b", "a.*", "a.b", Interest.parse("a.c"), "é.b", "!a.b", "/a.*/", "a.d"]
    assert table.add_many(interests, [0, 1, 0, 3, 4, 5, 6, numpy.uint32(7)]) == 7
    assert table.match("a.b") == [0, 1, 6]
    assert table.match("a.d") == [1, 6, 7]
    assert table.match("é.b") == [4]


def test_add_many_keeps_the_interests_before_the_invalid_one() -> None:
    table = InterestTable(seed=SEED)
    with pytest.raises(TopicError):
        table.add_many(["a", "b", "c c", "d"], [1, 1, 1, 1])
    assert len(table) == 2
    with pytest.raises(LocalProtocolError):
        table.add_many(["a"], [1, 2])
    with pytest.raises(LimitError):
        table.add_many(["a"], [-1])


def test_long_keys_are_supported() -> None:
    table = InterestTable(seed=SEED)
    long = "x" * 200
    for subscriber, interest in enumerate([long, f"{long}.*", f"*.{long}", f"{long[:64]}*.y", f"#{long}"]):
        table.add(interest, subscriber)
    assert table.match(long, [long]) == [0, 4]
    assert table.match(f"{long}.y") == [1, 3]
    assert table.match(f"y.{long}") == [2]
    assert table.match(f"{long[:-1]}z.y") == [3]


# Bad input


@pytest.mark.parametrize(
    "topic", [b"", b".", b"a.", b".a", b"a..b", b"a b", b"a.\x00", b"a.*", b"a.>", b"x" * 256, b".".join([b"a"] * 17)]
)
@pytest.mark.parametrize("with_regex", [False, True])
def test_an_invalid_topic_in_a_batch_matches_nothing_and_is_counted(topic: bytes, with_regex: bool) -> None:
    table = InterestTable(seed=SEED)
    for interest in [">", "*", "a.*", "a.>"] + ["/(?s).*/"] * with_regex:
        table.add(interest, 1)
    assert match_batch(table, b"a.b", topic, b"a") == [[1], [], [1]]
    assert table.malformed_count == 1


def test_ranges_outside_of_the_data_are_refused() -> None:
    table = InterestTable(seed=SEED)
    table.add("/a/", 1)
    for offsets, sizes in [([4], [1]), ([0], [5]), ([2**32 - 1], [65_535])]:
        with pytest.raises(LocalProtocolError):
            table.match_batch(b"abcd", numpy.array(offsets, numpy.uint32), numpy.array(sizes, numpy.uint16))
    with pytest.raises(LocalProtocolError):
        table.match_batch(b"abcd", numpy.array([0, 0], numpy.uint32), numpy.array([1], numpy.uint16))


def test_a_batch_may_be_columns_of_a_wider_array() -> None:
    table = InterestTable(seed=SEED)
    table.add("a.*", 1)
    found = numpy.array([(0, 3, 9), (3, 1, 9)], dtype=[("offset", "u4"), ("size", "u2"), ("other", "u8")])
    bounds, subscribers = table.match_batch(b"a.ba", found["offset"], found["size"])
    assert (bounds.tolist(), subscribers.tolist()) == ([0, 1, 1], [1])


def test_an_empty_batch() -> None:
    table = InterestTable(seed=SEED)
    for _ in range(2):
        bounds, subscribers = table.match_batch(b"", numpy.empty(0, numpy.uint32), numpy.empty(0, numpy.uint16))
        assert bounds.tolist() == [0]
        assert subscribers.tolist() == []
        table.add("/a/", 1)


@pytest.mark.parametrize("subscriber", [-1, 2**24, 2**32, 2**70])
def test_subscriber_numbers_are_bounded(subscriber: int) -> None:
    table = InterestTable(seed=SEED)
    for call in (table.add, table.remove):
        with pytest.raises(LimitError):
            call("a", subscriber)
    with pytest.raises(LimitError):
        table.remove_subscriber(subscriber)


def test_the_largest_subscriber() -> None:
    table = InterestTable(seed=SEED)
    table.add("a", 2**24 - 1)
    table.add("/b/", 2**24 - 1)
    assert table.match("a") == table.match("b") == [2**24 - 1]


def test_limits() -> None:
    table = InterestTable(TableLimits(interests_max=2, regexes_max=1, range_blocks_max=30), seed=SEED)
    with pytest.raises(LimitError, match="expand into"):
        table.add("a.[1..126].[1..126]", 1)
    table.add("/a/", 1)
    with pytest.raises(LimitError, match="regular expressions"):
        table.add("/b/", 1)
    with pytest.raises(LimitError, match="limit of 2 interests"):
        table.add_many(["b", "c"], [1, 1])
    assert len(table) == 2
    assert table.match("b") == [1]
    assert table.match("c") == []


@pytest.mark.parametrize("expression", ["(", "a**", "(?P<", "[z-a]", r"\1", "(?=a)", "a{1001}", "((a{1000}){1000})"])
def test_an_invalid_regex_is_refused(expression: str) -> None:
    with pytest.raises(TopicError, match="invalid regular expression"):
        InterestTable(seed=SEED).add(f"/{expression}/", 1)


def test_a_regex_that_needs_too_much_memory_is_refused() -> None:
    table = InterestTable(TableLimits(regex_group_memory_bytes_max=20_000), seed=SEED)
    table.add("/a+/", 1)
    with pytest.raises((LimitError, TopicError)):
        table.add(r"/(\pL{50})+x/", 1)
    larger_and_larger = [f"/a{{{number}}}.*x.{{{number}}}/" for number in range(1, 100)]
    with pytest.raises(LimitError, match="need more than 20000 bytes"):
        table.add_many(larger_and_larger, [1] * len(larger_and_larger))
    assert table.match("aaa") == [1]


def test_many_regexes_fill_several_groups() -> None:
    table = InterestTable(seed=SEED)
    for number in range(150):
        table.add(f"/a[.]{number}([.].*)?/", number)
    for number in (0, 63, 64, 149):
        assert table.match(f"a.{number}.x") == [number]
    for number in range(100):
        assert table.remove_subscriber(number) == 1
    assert table.match("a.99") == []
    assert table.match("a.100") == [100]


@pytest.mark.parametrize("seed", [b"", b"x" * 15, b"x" * 17])
def test_a_seed_has_16_bytes(seed: bytes) -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        InterestTable(seed=seed)


# Cost


def filled(count: int) -> InterestTable:
    """A table whose interests have the same shapes in any number."""
    table = InterestTable(seed=SEED)
    interests = [f"md.us.eq.S{number}.quote" for number in range(count)]
    interests += [f"md.us.*.S{number}.trade" for number in range(count // 10)]
    interests += [f"md.us.eq.S{number}*.>" for number in range(1000, 1000 + count // 10)]
    interests += [f"md.us.eq.[{number * 10}..{number * 10 + 9}]" for number in range(count // 100)]
    table.add_many(interests, [number % 100 for number in range(len(interests))])
    return table


@pytest.mark.spec("FILT-13")
def test_cost_depends_on_the_topic_and_not_on_the_number_of_interests() -> None:
    topics = [b"md.us.eq.S10055.quote", b"md.us.eq.77.x", b"md.us.eq.NONE.quote", b"md.us.fx.S5.trade"]
    costs = []
    for count in (2_000, 50_000):
        table = filled(count)
        match_batch(table, *topics)
        costs.append(table.lookup_count)
    assert costs[1] <= costs[0] + 10  # prefixes and ranges add a few lengths


@pytest.mark.spec("FILT-13")
def test_a_number_costs_at_most_64_look_ups_for_any_number_of_ranges() -> None:
    table = InterestTable(seed=SEED)
    for number in range(0, 2**20, 1_009):
        table.add(f"a.[{number}..{number * 3 + 5}]", number % 50)
    table.match("a.123456")
    assert table.lookup_count <= 64 + 16


def test_the_seed_changes_only_the_layout() -> None:
    first, second = InterestTable(seed=SEED), InterestTable(seed=SEED[::-1])
    for number in range(2_000):
        first.add(f"t.{number}", number)
        second.add(f"t.{number}", number)
    for number in range(2_000):
        assert first.match(f"t.{number}") == second.match(f"t.{number}") == [number]


# Threads


def test_interests_change_while_other_threads_match() -> None:
    table = InterestTable(seed=SEED)
    stable = [f"md.us.eq.S{number}.quote" for number in range(300)]
    table.add_many(stable, list(range(300)))
    table.add("md.*.eq.S7.>", 1_000)
    topics = batch(*map(str.encode, stable))
    expected = [[number, 1_000] if number == 7 else [number] for number in range(300)]
    is_done = threading.Event()
    wrong: list[object] = []

    def keep_matching() -> None:
        while not is_done.is_set():
            bounds, subscribers = table.match_batch(*topics)
            found = [
                sorted(s for s in subscribers[bounds[i] : bounds[i + 1]].tolist() if s <= 1_000) for i in range(300)
            ]
            if found != expected:
                wrong.append(found)
                return

    threads = [threading.Thread(target=keep_matching) for _ in range(2)]
    for thread in threads:
        thread.start()
    for round_number in range(2):
        for number in range(1_000):
            table.add(f"md.us.eq.N{number}.quote", 2_000 + number)
            table.add(f"md.us.*.S{number}.quote", 2_000 + number)
            table.add(f"md.us.eq.S{number % 300}.quote", 2_000 + number)
            table.add(f"x.[{number}..{number + 9}].y*", 2_000 + round_number)
        for number in range(1_000):
            table.remove_subscriber(2_000 + number)
    is_done.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(table) == 301


def test_a_concurrent_match_does_not_hide_a_new_regex(monkeypatch: pytest.MonkeyPatch) -> None:
    """The expression is added while the topic is being matched: the result without it must not be cached."""
    table = InterestTable(seed=SEED)
    table.add("/a.*/", 1)
    matching = regexes_module._Group.matching

    def matching_meanwhile(group: regexes_module._Group, topic: bytes) -> list[str]:
        found = matching(group, topic)
        if topic == b"abc":
            monkeypatch.undo()
            table.add("/ab.*/", 2)
        return found

    monkeypatch.setattr(regexes_module._Group, "matching", matching_meanwhile)
    table.match("abc")
    assert table.match("abc") == [1, 2]


def test_a_concurrent_match_outlives_its_regex(monkeypatch: pytest.MonkeyPatch) -> None:
    table = InterestTable(seed=SEED)
    table.add("/a.*/", 1)
    matching = regexes_module._Group.matching

    def matching_meanwhile(group: regexes_module._Group, topic: bytes) -> list[str]:
        found = matching(group, topic)
        table.remove("/a.*/", 1)
        return found

    monkeypatch.setattr(regexes_module._Group, "matching", matching_meanwhile)
    assert table.match("abc") == [1]
    assert table.match("abc") == []


def test_regexes_change_while_other_threads_match() -> None:
    table = InterestTable(seed=SEED)
    table.add("/md[.].*/", 1)
    wrong: list[object] = []
    is_done = threading.Event()

    def keep_matching() -> None:
        number = 0
        while not is_done.is_set() and not wrong:
            number += 1
            try:
                found = table.match(f"md.{number % 50}")
            except Exception as error:
                wrong.append(error)
                return
            if 1 not in found:
                wrong.append(found)

    threads = [threading.Thread(target=keep_matching) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(400):
            subscriber = 2 + number % 200
            table.add("/md[.].*/", subscriber)
            table.add(f"/md[.]{number % 50}/", subscriber)
            if subscriber not in table.match(f"md.{number % 50}"):
                wrong.append(number)
            table.remove(f"/md[.]{number % 50}/", subscriber)
            if number % 3:
                table.remove_subscriber(subscriber)
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_expressions_of_a_group_that_fills_early_share_the_next_groups() -> None:
    interests = RegexInterests(1_000, 400_000)
    for number in range(80):
        interests.add(f"x{number}(?:[a-z]{{60}}|[0-9]{{60}})", 1)
    sizes = [len(group.expressions) for group in interests._snapshot.automata.groups]
    assert len(sizes) > 2
    assert min(sizes[:-1]) > 1


@pytest.mark.parametrize("length", [1, 5, 12, 16, 20, 40])
def test_the_compiled_scan_knows_the_characters_that_no_topic_has(length: int) -> None:
    table = InterestTable()
    table.add(">", 1)
    for code in range(128):
        topic = "a" * (length // 2) + chr(code) + "a" * ((length - 1) // 2)
        assert is_accepted(table.match, topic) == is_accepted(check_topic, topic), repr(topic)


def is_accepted(judge: Callable[[str], object], topic: str) -> bool:
    try:
        return bool(judge(topic))
    except TopicError:
        return False
