"""Terms: the reigns of active adapters of a feed. A message carries the term in which its number was assigned; the
higher term counts.

     31                   14 13       10 9          4 3         0
    ┌───────────────────────┬───────────┬────────────┬───────────┐
    │ generation            │ breaker   │ takeover   │ claimant  │
    └───────────────────────┴───────────┴────────────┴───────────┘

Every discontinuity begins a new generation, named after the adapter that announced it (the breaker). A backup that
takes over seamlessly keeps both and increments the takeover count. No term is claimed twice, because the claimant is
part of it, and

- generation and breaker together are the *lineage*: all synchronised messages of a lineage, whichever adapter sent
  them, agree on the meaning of a number;
- an announced discontinuity is higher than any seamless takeover that did not know of it, so that every change of
  lineage is announced.

0 is not a valid term.

Besides its term, every message carries a tag of its source's session in the higher bits of its ORIGIN flags: positions
in the source are compared within a session only. A session is identified by its name and its trading date, because
venues use one name every day.
"""

from typing import NamedTuple, TypeVar

from penstock.base.crc32c import crc32c
from penstock.base.errors import LimitError

Text = TypeVar("Text", str, int)
"""A text, or a hash of one; an unknown text is empty, its hash is 0."""

ADAPTERS_MAX = 16
"""Maximum number of adapters of one feed."""

TAKEOVERS_MAX = 64
"""Maximum number of consecutive takeovers without a discontinuity."""

GENERATION_MAX = 2**18 - 1
LINEAGE_SHIFT = 10

SESSION_TAG_SHIFT = 3
"""First bit of the session tag in the ORIGIN flags."""

SESSION_TAG_MAX = 2**13 - 1
TAG_DAYS = 31
"""Days of a month: sessions of trading dates that are less than 28 days apart have different tags."""

TAG_NAMES = 264
"""Number of tags per trading date."""


class Term(NamedTuple):
    """The parts of a term."""

    generation: int
    breaker: int
    takeover: int
    claimant: int

    @staticmethod
    def of(term: int) -> "Term":
        return Term(term >> 14, term >> 10 & 0xF, term >> 4 & 0x3F, term & 0xF)

    def __int__(self) -> int:
        return self.generation << 14 | self.breaker << 10 | self.takeover << 4 | self.claimant

    def __str__(self) -> str:
        return f"{self.generation}.{self.breaker}.{self.takeover}.{self.claimant}"


def lineage(term: int) -> int:
    """Return the lineage, which is equal for terms whose numbers mean the same."""
    return term >> LINEAGE_SHIFT


def term_after_break(term: int, index: int) -> int:
    """Return the term in which adapter `index` announces a discontinuity."""
    generation = Term.of(term).generation + 1
    if generation > GENERATION_MAX:
        raise LimitError(
            f"the feed has had {GENERATION_MAX} discontinuities, which is the maximum",
            hint="stop all adapters, remove their term files and restart them; restart subscribers as well",
        )
    return int(Term(generation, index, 0, index))


def term_after_takeover(term: int, index: int) -> int | None:
    """Return the term in which adapter `index` takes over seamlessly; None when only a discontinuity gives a higher
    term.
    """
    known = Term.of(term)
    if not known.generation or known.takeover + 1 >= TAKEOVERS_MAX:
        return None
    return int(Term(known.generation, known.breaker, known.takeover + 1, index))


def session_tag(session: str, trading_date: str = "") -> int:
    """Return the session's tag, from 1; 0 means no session. `trading_date` is an ISO date, empty if unknown.

    With dates, tags of dates less than 28 days apart differ, and so do the tags of `name`, `name#2`, `name#3` of one
    date. Two other names of one date have the same tag with a probability of 1 in TAG_NAMES.
    """
    if not session:
        return 0
    if not trading_date:
        return 1 + crc32c(session.encode()) % SESSION_TAG_MAX
    name, count = session_parts(session)
    day = int(trading_date[-2:]) % TAG_DAYS
    return 1 + day * TAG_NAMES + (crc32c(name.encode()) + count) % TAG_NAMES


def is_same_session(name: Text, trading_date: Text, other_name: Text, other_date: Text) -> bool:
    """True if two announcements refer to the same session: the names are equal, and so are the trading dates if both
    are known.

    A venue may use one name every day, so the name alone does not identify a session. Captures store hashes instead of
    texts and apply the same rule to them.
    """
    has_dates = bool(trading_date and other_date)
    return name == other_name and (not has_dates or trading_date == other_date)


def session_parts(session: str) -> tuple[str, int]:
    """Split a session into the name given by the source, and its number among sessions with this name: `day#2`."""
    name, mark, number = session.rpartition("#")
    is_counted = mark and number.isascii() and number.isdigit() and len(number) < 10
    return (name, int(number)) if is_counted else (session, 1)
