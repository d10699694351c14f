"""Wants that take in another are found by how topics begin: the same ones as by asking each."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.tree.core.control import Want
from penstock.tree.core.legs import aggregated, since
from penstock.tree.core.wants import Joined, covers

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
    joined = Joined({want: number for number, want in enumerate(wants)})
    wide = [want for want in joined if covers(want, narrow)]
    assert set(joined.covering(narrow)) == set(wide)
    assert since(joined, (narrow,)) == joined.get(narrow, min((joined[each] for each in wide), default=None))


@given(st.lists(WANTS, max_size=12))
def test_what_is_left_out_is_covered_by_what_is_not(wants: list[Want]) -> None:
    joined = Joined(dict.fromkeys(wants, 0))
    found = aggregated(wants, joined, WHOLE, 100)
    if found == (WHOLE,):
        assert WHOLE in joined
        return
    assert all(any(covers(wide, want) for wide in found) for want in wants)
    assert not any(one != other and covers(one, other) and not covers(other, one) for one in found for other in found)


@given(st.lists(WANTS, min_size=1, max_size=12, unique=True), st.data())
def test_what_was_taken_out_is_found_no_more(wants: list[Want], data: st.DataObject) -> None:
    joined = Joined(dict.fromkeys(wants, 0))
    gone = data.draw(st.sampled_from(wants))
    del joined[gone]
    assert gone not in joined
    assert gone not in set(joined.covering(gone))
    joined.clear()
    assert not list(joined.covering(gone))


def test_a_tag_takes_in_itself_and_no_other() -> None:
    assert not covers(Want(("#a", "x")), Want(("#b", "x")))
    assert covers(Want(("#a", "x")), Want(("#a",)))
