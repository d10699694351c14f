from collections.abc import Callable
from typing import Any

from penstock.base.counters import Cause

FAULT_CAUSES: dict[int, Cause]
OPS_MAX: int

def __getattr__(name: str) -> int: ...  # the names of _program.pxd's enums

class Program:
    def __init__(
        self,
        *,
        ops: list[Any],
        routes: list[Any],
        outputs: list[Any],
        maps: list[tuple[dict[int, int], int | None]],
        functions: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...],
        image: tuple[int, int],
        layout: str,
        separator: str,
        type_place: tuple[int, int],
    ) -> None: ...
    @property
    def route_count(self) -> int: ...
    @property
    def output_count(self) -> int: ...
    @property
    def functions(self) -> tuple[tuple[Callable[..., Any], tuple[str, ...]], ...]: ...
