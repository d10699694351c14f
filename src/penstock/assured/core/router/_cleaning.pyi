import numpy
from numpy.typing import NDArray
from typing_extensions import Buffer

from penstock.assured.core.router._tables import Tables

def move_oldest(
    tables: Tables, count_max: int, size_max: int
) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]]: ...
def take_records(
    tables: Tables, ids: NDArray[numpy.uint64], data: Buffer, rows: NDArray[numpy.void], is_moving: bool
) -> int: ...
def own_publisher(tables: Tables, handle: int, owner: int) -> None: ...
def log_publishers(tables: Tables, before: int) -> None: ...
