"""Terms: their order separates two numberings."""

import itertools
from datetime import date, timedelta

import pytest

from penstock.base.errors import LimitError
from penstock.wire.term import (
    GENERATION_MAX,
    SESSION_TAG_MAX,
    SESSION_TAG_SHIFT,
    TAKEOVERS_MAX,
    Term,
    lineage,
    session_tag,
    term_after_break,
    term_after_takeover,
)


def test_the_fields_have_the_documented_positions() -> None:
    assert int(Term(1, 0, 0, 0)) == 0x4000
    assert int(Term(0, 1, 0, 0)) == 0x400
    assert int(Term(0, 0, 1, 0)) == 0x10
    assert int(Term(GENERATION_MAX, 15, TAKEOVERS_MAX - 1, 15)) == 2**32 - 1
    assert Term.of(0x12345678) == Term(0x48D1, 5, 0x27, 8)
    assert int(Term.of(0x12345678)) == 0x12345678
    assert str(Term(3, 0, 2, 1)) == "3.0.2.1"


def test_every_claim_is_higher_and_no_two_adapters_claim_the_same() -> None:
    known = int(Term(5, 2, 7, 3))
    claims = [claim(known, index) for claim in (term_after_break, term_after_takeover) for index in range(16)]
    assert len(set(claims)) == len(claims)
    assert min(claims) > known


def test_a_discontinuity_is_higher_than_any_takeover_that_does_not_know_of_it() -> None:
    known = int(Term(5, 2, 7, 3))
    taken = known
    for index in itertools.islice(itertools.cycle(range(16)), 50):
        taken = term_after_takeover(taken, index) or 0
        assert lineage(taken) == lineage(known)
        assert taken < term_after_break(known, 0)
    assert lineage(term_after_break(known, 0)) != lineage(term_after_break(known, 1))


def test_takeovers_and_terms_are_bounded() -> None:
    assert term_after_takeover(int(Term(5, 2, TAKEOVERS_MAX - 1, 3)), 1) is None
    assert term_after_takeover(0, 1) is None
    with pytest.raises(LimitError):
        term_after_break(int(Term(GENERATION_MAX, 0, 0, 0)), 1)


def test_a_session_tag_fits_into_the_flags() -> None:
    tags = [session_tag(f"2024010{n}") for n in range(9)]
    assert len(set(tags)) == len(tags)
    assert all(1 <= tag <= SESSION_TAG_MAX for tag in tags)
    assert SESSION_TAG_MAX << SESSION_TAG_SHIFT <= 0xFFFF
    assert session_tag("") == 0


@pytest.mark.spec("DAY-1")
def test_a_session_of_another_date_has_another_tag_under_the_same_name() -> None:
    first = date(2026, 1, 1)
    days = [(first + timedelta(days=number)).isoformat() for number in range(400)]
    tags = [session_tag("day", day) for day in days]
    assert all(1 <= tag <= SESSION_TAG_MAX for tag in tags)
    assert all(len(set(tags[at : at + 28])) == 28 for at in range(len(tags) - 28))
    names = ["day", *(f"day#{number}" for number in range(2, 200))]
    assert len({session_tag(name, days[0]) for name in names}) == len(names)
    assert session_tag("", days[0]) == 0
