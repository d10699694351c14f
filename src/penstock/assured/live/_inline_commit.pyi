import numpy
from numpy.typing import NDArray

from penstock.assured.core.router._tables import Tables
from penstock.journal.live._inline_commit import InlineWriter
from penstock.net._tcp import Receiver
from penstock.topics._table import TableKernel

class InlineCommitKernel:
    @property
    def served(self) -> int: ...
    @property
    def is_next_ready(self) -> bool: ...
    @property
    def unsent(self) -> bytes: ...
    def __init__(self, tables: Tables, topics: TableKernel, receiver: Receiver, other_links: int) -> None: ...
    def serve(
        self,
        journal: InlineWriter,
        fd: int,
        link: int,
        endpoints: NDArray[numpy.uint32],
        wall_offset_ns: int,
        for_ns: int,
    ) -> bytes: ...
