"""What the compiler writes: operations on registers, and what is known of the value in each before any message came."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from penstock.base.errors import LimitError
from penstock.convert.kernel import _program as c

MISSING = -(2**63)
"""The least number there is in 64 bits stands for a missing value."""

NUMBER_MIN, NUMBER_MAX = MISSING + 1, 2**63 - 1


class Op(NamedTuple):
    """One operation, as _program.pxd has it."""

    code: int
    to: int = 0
    registers: tuple[int, ...] = (c.NONE,) * 6
    offset: int = 0
    size: int = 0
    x: int = 0
    y: int = 0

    @property
    def is_jump(self) -> bool:
        return c.CODE_UNLESS_EQUAL <= self.code <= c.CODE_UNLESS_BITS


def op(code: int, *registers: int, to: int = 0, offset: int = 0, size: int = 0, x: int = 0, y: int = 0) -> Op:
    padded = (*registers, *(c.NONE,) * (6 - len(registers)))
    return Op(code, to, padded, offset, size, x, y)


@dataclass(frozen=True)
class Value:
    """A value in a register, and all that is known of it."""

    kind: int
    register: int
    low: int = NUMBER_MIN
    high: int = NUMBER_MAX
    decimals: int | None = None
    optional: bool = False
    is_pure: bool = True
    """It follows from the source message alone."""
    size_max: int = 0
    """Bytes of a text; 0 is not known."""
    names: dict[str, int] | None = None
    """What its numbers are called."""

    @property
    def is_text(self) -> bool:
        return self.kind in (c.KIND_PACKED, c.KIND_TEXT)


@dataclass
class Code:
    """The operations of one message while they are written: first those that only read the message, then the steps."""

    values: list[Op] = field(default_factory=list)
    steps: list[Op] = field(default_factory=list)
    _numbers: int = c.REGISTER_FREE
    _texts: int = 0
    _derived: dict[tuple[int, int, Op], int] = field(default_factory=dict)

    def add(self, made: Op, is_pure: bool) -> None:
        (self.values if is_pure else self.steps).append(made)

    def derive(self, value: Value, code: int, *, x: int = 0, y: int = 0, size: int = 0, **known: object) -> Value:
        """The value after one more operation, in another register; `known` is what changes about it."""
        changed = replace(value, **known)  # type: ignore[arg-type]
        wanted = op(code, value.register, x=x, y=y, size=size)
        key = (value.kind, changed.kind, wanted)
        if key in self._derived:
            return replace(changed, register=self._derived[key])
        made = replace(changed, register=self.new_register(changed.kind))
        if value.is_pure:
            self._derived[key] = made.register
        self.add(wanted._replace(to=made.register), value.is_pure)
        return made

    def check(self, value: Value, code: int, **arguments: int) -> None:
        self.add(op(code, value.register, int(value.optional), **arguments), value.is_pure)

    def new_register(self, kind: int) -> int:
        if kind == c.KIND_TEXT:
            self._texts += 1
            if self._texts > c.TEXTS:
                raise LimitError(f"a message has more than {c.TEXTS} texts")
            return self._texts - 1
        self._numbers += 1
        if self._numbers > c.REGISTERS:
            raise LimitError(f"a message has more than {c.REGISTERS - c.REGISTER_FREE} values")
        return self._numbers - 1


def pack(text: bytes) -> int:
    """A text of at most 8 bytes as the number that stands for it in a register."""
    return int.from_bytes(text.rstrip(b" \0"), "little")


def signed(number: int) -> int:
    """A number of 64 bits as a register has it."""
    return number - 2**64 if number >= 2**63 else number
