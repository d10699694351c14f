"""The register of a root or standby on its disk, besides journals: the streams, and the positions of publishers."""

from pathlib import Path
from typing import TypeVar

import msgspec

from penstock.base.decoding import json_decoder
from penstock.base.errors import ConfigurationError
from penstock.tree.core.control import StreamInfo


class Register(msgspec.Struct, frozen=True):
    tree: str
    term: int
    streams: list[StreamInfo]
    is_root: bool = False


class Publishers(msgspec.Struct, frozen=True):
    through: dict[int, int]
    """By stream: the last sequence number whose publisher is included."""
    numbers: dict[int, int]
    """By publisher: the number up to which all its messages are stored."""
    beyond: dict[int, list[int]] = {}
    """By publisher: stored numbers above that."""
    bearers: dict[int, str] = {}
    """By publisher: its client, if known."""


T = TypeVar("T")


def read_document(path: Path, kind: type[T]) -> T:
    try:
        return json_decoder(kind).decode(path.read_bytes())
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"is damaged: {error}", where=str(path)) from None
