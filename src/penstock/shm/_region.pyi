from collections.abc import Iterable
from typing import Any, Self

from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.base.segment import Segment
from penstock.model import Message, MessageModel

REGION_MAGIC: int
REGION_VERSION: int
REGION_HEADER_SIZE: int
RECORD_HEADER_SIZE: int
PART_TRAILER_SIZE: int
PARTS_MAX: int
MARK_SIZE: int

class Region:
    @property
    def record_count(self) -> int: ...
    @property
    def payload_size(self) -> int: ...
    @property
    def part_sizes(self) -> tuple[int, ...]: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class RegionWriter(Region):
    segment: Segment
    @staticmethod
    def create(record_count: int, part_sizes: Iterable[int]) -> RegionWriter: ...
    def write(
        self,
        index: int,
        payload: Buffer,
        *,
        first_part: int = 0,
        started_ns: int = 0,
        finished_ns: int = 0,
        merged: int = 0,
    ) -> int: ...
    def close(self) -> None: ...

class RegionMarks:
    segment: Segment
    record_count: int
    @staticmethod
    def create(record_count: int) -> RegionMarks: ...
    def __getitem__(self, index: int) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class RegionRecord:
    payload: bytes
    update_count: int
    started_ns: int
    finished_ns: int
    issued_ns: int
    merged: int
    is_withdrawn: bool
    @property
    def part_update_counts(self) -> tuple[int, ...]: ...
    @property
    def message(self) -> Message: ...

class RegionReader(Region):
    def __init__(self, segment: Segment, model: MessageModel | None = None) -> None: ...
    def read(self, index: int, timeout_ns: int | None = 0) -> RegionRecord | None: ...
    def read_into(self, index: int, out: Buffer, timeout_ns: int | None = 0) -> int: ...
    def read_batch(self, indices: NDArray[Any], rows: NDArray[Any], update_counts: NDArray[Any]) -> int: ...
    def close(self) -> None: ...
