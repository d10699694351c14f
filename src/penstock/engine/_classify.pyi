from collections.abc import Callable, Sequence

from typing_extensions import Buffer

from penstock.model import Field
from penstock.topics._predicate import Program

class ValueTest:
    def __init__(self, field: Field, matches: Callable[[bytes], bool]) -> None: ...
    def __len__(self) -> int: ...
    def __call__(self, record: Buffer) -> bool: ...

class ClassProgram:
    static_class: int
    def __init__(
        self, steps: Sequence[tuple[Program | None, Sequence[ValueTest], int]], otherwise: int
    ) -> None: ...
    def __call__(self, record: Buffer) -> int: ...
