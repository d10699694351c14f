"""Frames of a link, cut out, checked, written and read; frames.py gives their parts names."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

from penstock.assured.wire.frames import Delivered, Published

class FrameSplitter:
    """Takes a link's bytes as they come and gives what is whole: a control message as its payload, data frames that
    follow each other as one piece, with their lengths. It keeps the beginning of one frame."""

    size_max: int
    failure: str
    """Why the stream is spoilt; empty: it is not."""

    def __init__(self, size_max: int = ...) -> None: ...
    @property
    def is_between(self) -> bool: ...
    def allow_more(self) -> None:
        """From a peer that has become known every frame is taken."""
    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Pairs, in order: whether it is data, and the bytes."""

def check_frames(frames: Buffer) -> int:
    """How many data frames these bytes are; RemoteProtocolError if one is not as it should be."""

def frames_in(frames: Buffer) -> list[tuple[int, int, bytes]]:
    """Each data frame: its kind, the publisher or flow that it names, and the frame without its length. Only the length
    and that much of the head are looked at; RemoteProtocolError if they are not there."""

def encode_publish(
    publisher: int, first_number: int, messages: Sequence[Published], *, transaction: int = 0
) -> bytes: ...
def encode_acknowledge(publisher: int, runs: Sequence[tuple[int, ...]]) -> bytes:
    """A frame with these runs: (first number, last number, outcome), of a full endpoint also its limit and number."""

def encode_deliver(flow: int, messages: Sequence[Delivered]) -> bytes: ...
def encode_settle(flow: int, runs: Sequence[tuple[int, int, int]], *, transaction: int = 0) -> bytes:
    """A frame with these runs: (first id, last id, what becomes of them)."""

def encode_credit(flow: int, total: int) -> bytes: ...
def take_apart(frames: Buffer) -> list[tuple[Any, ...]]:
    """What data frames say, as tuples that begin with their kind; RemoteProtocolError."""
