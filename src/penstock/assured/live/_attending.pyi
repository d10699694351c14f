import numpy
from numpy.typing import NDArray

from penstock.assured.core.router._tables import Tables
from penstock.journal._lone import LoneWriter
from penstock.net._tcp import Receiver
from penstock.topics._table import TableKernel

class Attending:
    @property
    def served(self) -> int: ...
    @property
    def is_prompt(self) -> bool: ...
    @property
    def unsent(self) -> bytes: ...
    def __init__(self, tables: Tables, topics: TableKernel, receiver: Receiver, ears: int) -> None: ...
    def serve(
        self,
        journal: LoneWriter,
        fd: int,
        link: int,
        endpoints: NDArray[numpy.uint32],
        wall_offset_ns: int,
        for_ns: int,
    ) -> bytes: ...
