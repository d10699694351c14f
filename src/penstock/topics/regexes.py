"""Regular expressions of an interest table: many matched at once, in time linear in the topic.

RE2 never backtracks, so no expression can block the table; TableLimits bounds its memory. Expressions are divided into
groups, each one automaton, so that adding an expression rebuilds one group and not all.
"""

from collections.abc import Set
from functools import lru_cache, partial

import numpy
import numpy.typing as npt
import re2

from penstock.base.errors import LimitError, TopicError
from penstock.topics.topic import shown

GROUP_SIZE = 64
MEMO_TOPICS_MAX = 8_192

# Matches every topic: if this expression is missing from a result, RE2 has silently run out of memory.
_SENTINEL = r"(?s:\C*)"

Codes = npt.NDArray[numpy.uint32]
_NO_CODES: Codes = numpy.empty(0, dtype=numpy.uint32)


class RegexInterests:
    """The subscribers of each expression, as codes (see _store.pxd).

    One thread may add and remove while others match, because the data for matching is immutable and replaced as a
    whole.
    """

    def __init__(self, regexes_max: int, group_memory_bytes_max: int) -> None:
        self._regexes_max = regexes_max
        self._options = re2.Options()
        self._options.max_mem = group_memory_bytes_max
        self._options.log_errors = False
        self._options.never_capture = True
        self._snapshot = _Snapshot(_Automata(()), {})

    def __len__(self) -> int:
        return self._snapshot.count

    def add(self, expression: str, code: int) -> bool:
        old = self._snapshot
        held = old.codes.get(expression)
        if held is not None and code in held:
            return False
        automata = old.automata if held is not None else self._with_expression(old, expression)
        codes = numpy.array([code], dtype=numpy.uint32)
        joined = codes if held is None else numpy.concatenate((held, codes))
        self._snapshot = _Snapshot(automata, {**old.codes, expression: joined})
        return True

    def remove(self, expression: str, code: int) -> bool:
        return self._remove([expression], {code}) > 0

    def remove_codes(self, codes: set[int]) -> int:
        """Remove these codes from every expression and return how many were removed."""
        return self._remove(list(self._snapshot.codes), codes)

    def match(self, topic: bytes) -> Codes:
        """Return the codes of the matching expressions; codes may repeat."""
        snapshot = self._snapshot
        found = [snapshot.codes[expression] for expression in snapshot.automata.matching(topic)]
        return numpy.concatenate(found) if found else _NO_CODES

    def _remove(self, expressions: list[str], codes: set[int]) -> int:
        old = self._snapshot
        unwanted = numpy.array(sorted(codes), dtype=numpy.uint32)
        left = dict(old.codes)
        for expression in expressions:
            held = left.get(expression, _NO_CODES)
            kept = held[~numpy.isin(held, unwanted)]
            if len(kept):
                left[expression] = kept
            else:
                left.pop(expression, None)
        automata = old.automata.without(old.codes.keys() - left.keys(), self._options)
        self._snapshot = _Snapshot(automata, left)
        return old.count - self._snapshot.count

    def _with_expression(self, old: "_Snapshot", expression: str) -> "_Automata":
        where = f"interest {shown('/' + expression + '/')}"
        try:
            re2.compile(expression, self._options)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace") if error.args else "cannot be compiled"
            raise TopicError(f"invalid regular expression: {reason}", where=where, hint="use RE2's syntax") from None
        if len(old.codes) >= self._regexes_max:
            raise LimitError(
                f"the table has reached its limit of {self._regexes_max} regular expressions",
                where=where,
                hint="use patterns such as md.*.AA*.>, or raise regexes_max",
            )
        return old.automata.with_expression(expression, self._options)


class _Snapshot:
    """Immutable data of a match: the automata, and the codes of every expression in them."""

    def __init__(self, automata: "_Automata", codes: dict[str, Codes]) -> None:
        self.automata = automata
        self.codes = codes
        self.count = sum(map(len, codes.values()))


class _Automata:
    """The immutable groups of one set of expressions, with a cache of results for recent topics."""

    def __init__(self, groups: "tuple[_Group, ...]") -> None:
        self.groups = groups
        # The cache belongs to these groups alone, so that a running match cannot add results to a newer set.
        self.matching = lru_cache(maxsize=MEMO_TOPICS_MAX)(partial(_matching, groups))

    def with_expression(self, expression: str, options: "re2.Options") -> "_Automata":
        for position, group in enumerate(self.groups):
            if len(group.expressions) == GROUP_SIZE or group.is_full:
                continue
            try:
                larger = _Group([*group.expressions, expression], options)
            except LimitError:
                group.is_full = True  # too much for this group, but maybe not for another
                continue
            return _Automata((*self.groups[:position], larger, *self.groups[position + 1 :]))
        return _Automata((*self.groups, _Group([expression], options)))

    def without(self, expressions: Set[str], options: "re2.Options") -> "_Automata":
        if not expressions:
            return self
        groups = []
        for group in self.groups:
            left = [expression for expression in group.expressions if expression not in expressions]
            if len(left) == len(group.expressions):
                groups.append(group)
            elif left:
                groups.append(_Group(left, options))
        return _Automata(tuple(groups))


def _matching(groups: "tuple[_Group, ...]", topic: bytes) -> tuple[str, ...]:
    return tuple(expression for group in groups for expression in group.matching(topic))


class _Group:
    """Expressions compiled into one automaton."""

    def __init__(self, expressions: list[str], options: "re2.Options") -> None:
        self.expressions = expressions
        self.is_full = False
        """True if adding another expression failed for lack of memory."""
        self._memory_bytes_max = options.max_mem
        self._automaton = re2.Set.FullMatchSet(options)
        try:
            for expression in [*expressions, _SENTINEL]:
                self._automaton.Add(expression)
            self._automaton.Compile()
        except re2.error:
            raise self._too_large() from None
        self.matching(b"")

    def matching(self, topic: bytes) -> list[str]:
        found = self._automaton.Match(topic)
        if not found:
            raise self._too_large()
        return [self.expressions[index] for index in found if index < len(self.expressions)]

    def _too_large(self) -> LimitError:
        return LimitError(
            f"the regular expressions need more than {self._memory_bytes_max} bytes",
            where=f"interest {shown('/' + self.expressions[-1] + '/')}",
            hint="use fewer or smaller repetitions, or raise regex_group_memory_bytes_max",
        )
