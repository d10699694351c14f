"""Frames of a link: split, checked, encoded and decoded; frames.py names their parts."""

from collections.abc import Sequence
from typing import Any

from typing_extensions import Buffer

from penstock.assured.wire.frames import Delivered, Published

class FrameSplitter:
    """Splits a link's byte stream: a control message as its payload, consecutive data frames as one piece, with
    their lengths. Buffers an incomplete frame."""

    size_max: int
    failure: str
    """The reason why the stream is unusable; empty if it is not."""

    def __init__(self, size_max: int = ...) -> None: ...
    @property
    def is_between(self) -> bool: ...
    def allow_more(self) -> None:
        """Accept all frames, from a peer that has been authenticated."""
    def feed(self, data: bytes) -> list[tuple[bool, bytes]]:
        """Return pairs in order: True for data, and the bytes."""

def check_frames(frames: Buffer) -> int:
    """Return the number of data frames in these bytes. Raises RemoteProtocolError if one is invalid."""

def frames_in(frames: Buffer) -> list[tuple[int, int, bytes]]:
    """Return each data frame: its kind, its publisher or flow, and the frame without its length. Only the length and
    this part of the header are checked; raises RemoteProtocolError if they are incomplete."""

def encode_publish(
    publisher: int, first_number: int, messages: Sequence[Published], *, transaction: int = 0
) -> bytes: ...
def encode_acknowledge(publisher: int, runs: Sequence[tuple[int, ...]]) -> bytes:
    """Encode a frame with these runs: (first number, last number, outcome), for a full endpoint also its limit and
    number."""

def encode_deliver(flow: int, messages: Sequence[Delivered]) -> bytes: ...
def encode_settle(flow: int, runs: Sequence[tuple[int, int, int]], *, transaction: int = 0) -> bytes:
    """Encode a frame with these runs: (first id, last id, settlement)."""

def encode_credit(flow: int, total: int) -> bytes: ...
def take_apart(frames: Buffer) -> list[tuple[Any, ...]]:
    """Decode data frames as tuples that begin with their kind. Raises RemoteProtocolError."""
