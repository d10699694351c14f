"""The interface of a converter for a feed adapter, so that tests can use a simpler one."""

from collections.abc import Iterable
from datetime import date
from typing import Protocol

import numpy
from numpy.typing import NDArray

from penstock.convert import SourceBatch
from penstock.middleware.core.batch import Packable


class Checkpoint(Protocol):
    """A position of a conversion, and the digest of its state there."""

    @property
    def next_source_sequence(self) -> int: ...
    @property
    def next_message_sequence(self) -> int: ...
    @property
    def digest(self) -> int: ...


class StateImage(Protocol):
    def chunk(self, size_max: int) -> bytes:
        """The next piece of the image; empty at its end."""
        ...


class ConversionState(Protocol):
    @property
    def digest(self) -> int: ...
    def unit_digests(self) -> NDArray[numpy.uint64]: ...
    def begin_image(self, known: NDArray[numpy.uint64] | None = None) -> StateImage: ...
    def install(self, chunks: Iterable[bytes]) -> None: ...


class Conversion(Protocol):
    """A Converter, or something that behaves like one."""

    next_message_sequence: int
    term: int
    flags: int

    @property
    def plan_number(self) -> int:
        """The identity of the conversion plan; equal identities produce equal messages."""
        ...

    @property
    def next_source_sequence(self) -> int: ...
    @property
    def is_over(self) -> bool:
        """True if the feed has announced that no more messages follow in this session."""
        ...

    @property
    def state(self) -> ConversionState: ...
    def convert(self, batch: SourceBatch) -> Packable: ...
    def skip_to(self, sequence: int) -> None: ...
    def take_checkpoints(self) -> Iterable[Checkpoint]: ...
    def checkpoint_now(self) -> Checkpoint: ...
    @property
    def trading_date(self) -> date | None: ...
    def new_session(self, name: str, trading_date: date | None, *, is_continued: bool = False) -> None: ...
