from collections.abc import Callable
from typing import Any, TypeAlias

from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.engine.client._fields import FieldTable
from penstock.shm import RingReader
from penstock.topics._predicate import Program

BLOCK_SIZE: int

Plan: TypeAlias = tuple[FieldTable | None, Program | None]

class Intake:
    last_number: int
    events: int
    duplicates: int
    undefined: int
    filtered: int
    def __init__(self, items_max: int, learn: Callable[[int, int], Plan]) -> None: ...
    def take(self, ring: RingReader, timeout_ns: int) -> bytes: ...
    def load(self, data: Buffer) -> bytes: ...
    def forget(self) -> None: ...

def count_records(block: bytes) -> dict[tuple[int, int], int]: ...
def gather_records(block: bytes, model_id: int, rows: NDArray[Any]) -> int: ...
def split_block(block: bytes) -> tuple[bytes, bytes]: ...
