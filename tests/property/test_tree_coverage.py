"""The search by topic prefixes finds the same covering interests as a scan of all interests."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.tree.core.control import Want
from penstock.tree.core.coverage import Coverage, aggregated, covers

LEVELS = st.sampled_from(["a", "b", "a*", "*", "[1..9]", "3"])
PATTERNS = st.builds(
    lambda levels, rest: ".".join([*levels, ">"] if rest else levels),
    st.lists(LEVELS, min_size=1, max_size=3),
    st.booleans(),
)
TOPICS = st.one_of(PATTERNS, st.just(">"), st.just("!a.b"), st.sampled_from(["/a.b/", "#a", "#b"]))
WANTS = st.builds(
    Want, st.lists(TOPICS, min_size=1, max_size=3).map(tuple), st.sampled_from(["", "price > 1", "price > 2"])
)
WHOLE = Want((">",))


@given(st.lists(WANTS, max_size=12), WANTS)
def test_those_that_cover_are_found(wants: list[Want], narrow: Want) -> None:
    coverage = Coverage({want: number for number, want in enumerate(wants)})
    wide = [want for want in coverage if covers(want, narrow)]
    assert set(coverage.covering(narrow)) == set(wide)
    assert coverage.since((narrow,)) == coverage.get(narrow, min((coverage[each] for each in wide), default=None))


@given(st.lists(WANTS, max_size=12))
def test_what_is_left_out_is_covered_by_what_is_not(wants: list[Want]) -> None:
    coverage = Coverage(dict.fromkeys(wants, 0))
    found = aggregated(wants, coverage, WHOLE, 100)
    if found == (WHOLE,):
        assert WHOLE in coverage
        return
    assert all(any(covers(wide, want) for wide in found) for want in wants)
    assert not any(one != other and covers(one, other) and not covers(other, one) for one in found for other in found)


@given(st.lists(WANTS, min_size=1, max_size=12, unique=True), st.data())
def test_what_was_taken_out_is_found_no_more(wants: list[Want], data: st.DataObject) -> None:
    coverage = Coverage(dict.fromkeys(wants, 0))
    gone = data.draw(st.sampled_from(wants))
    del coverage[gone]
    assert gone not in coverage
    assert gone not in set(coverage.covering(gone))
    coverage.clear()
    assert not list(coverage.covering(gone))


def test_a_tag_takes_in_itself_and_no_other() -> None:
    assert not covers(Want(("#a", "x")), Want(("#b", "x")))
    assert covers(Want(("#a", "x")), Want(("#a",)))
