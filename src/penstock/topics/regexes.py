"""Regular expressions of an interest table: many matched at once, in time linear in the topic.

RE2 never backtracks, so no expression can hang the table; its memory is bounded by TableLimits. Expressions are held
in groups, each one automaton, so that adding one rebuilds a group and not all of them.
"""

from functools import lru_cache

import numpy
import numpy.typing as npt
import re2

from penstock.base.errors import LimitError, TopicError
from penstock.topics.topic import shown

GROUP_SIZE = 64
MEMO_TOPICS_MAX = 8_192

# Matches whatever the topic: when even this is missing from a result, RE2 has run out of memory and said nothing.
_SENTINEL = r"(?s:\C*)"


class RegexInterests:
    """Who is interested in which expression, as codes (see _store.pxd)."""

    def __init__(self, regexes_max: int, group_memory_bytes_max: int) -> None:
        self._regexes_max = regexes_max
        self._options = re2.Options()
        self._options.max_mem = group_memory_bytes_max
        self._options.log_errors = False
        self._options.never_capture = True
        self._codes: dict[str, set[int]] = {}
        self._groups: list[_Group] = []
        # Topics repeat; a new or vanished expression empties it.
        self._matching = lru_cache(maxsize=MEMO_TOPICS_MAX)(self._match_groups)

    def __len__(self) -> int:
        return sum(map(len, self._codes.values()))

    def add(self, expression: str, code: int) -> bool:
        codes = self._codes.get(expression)
        if codes is None:
            self._add_expression(expression)
            codes = self._codes[expression] = set()
        elif code in codes:
            return False
        codes.add(code)
        return True

    def remove(self, expression: str, code: int) -> bool:
        codes = self._codes.get(expression, set())
        if code not in codes:
            return False
        codes.remove(code)
        if not codes:
            self._remove_expression(expression)
        return True

    def remove_codes(self, codes: set[int]) -> int:
        """Remove these codes from every expression; how many there were."""
        found = [(expression, code) for expression, held in self._codes.items() for code in held & codes]
        return sum(self.remove(expression, code) for expression, code in found)

    def match(self, topic: bytes) -> npt.NDArray[numpy.uint32]:
        """The codes of the expressions that match the topic; they may repeat."""
        codes = [code for expression in self._matching(topic) for code in self._codes[expression]]
        return numpy.array(codes, dtype=numpy.uint32)

    def _match_groups(self, topic: bytes) -> tuple[str, ...]:
        return tuple(expression for group in self._groups for expression in group.matching(topic))

    def _add_expression(self, expression: str) -> None:
        where = f"interest {shown('/' + expression + '/')}"
        try:
            re2.compile(expression, self._options)
        except re2.error as error:
            reason = error.args[0].decode(errors="replace") if error.args else "cannot be compiled"
            raise TopicError(
                f"the regular expression is refused: {reason}", where=where, hint="expressions follow RE2's syntax"
            ) from None
        if len(self._codes) >= self._regexes_max:
            raise LimitError(
                f"the table has {self._regexes_max} regular expressions already",
                where=where,
                hint="use patterns such as md.*.AA*.>, or raise regexes_max",
            )
        position = next((n for n, group in enumerate(self._groups) if len(group.expressions) < GROUP_SIZE), None)
        if position is not None:
            try:
                self._groups[position] = _Group([*self._groups[position].expressions, expression], self._options)
            except LimitError:
                position = None  # too much for this group, perhaps not for one of its own
        if position is None:
            self._groups.append(_Group([expression], self._options))
        self._matching.cache_clear()

    def _remove_expression(self, expression: str) -> None:
        position = next(n for n, group in enumerate(self._groups) if expression in group.expressions)
        remaining = [other for other in self._groups[position].expressions if other != expression]
        self._groups[position : position + 1] = [_Group(remaining, self._options)] if remaining else []
        del self._codes[expression]
        self._matching.cache_clear()


class _Group:
    """Expressions compiled into one automaton."""

    def __init__(self, expressions: list[str], options: "re2.Options") -> None:
        self.expressions = expressions
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
