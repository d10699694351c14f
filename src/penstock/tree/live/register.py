"""What a root or standby has on its disk besides journals: which streams there are, and how far publishers were."""

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
    """By stream, the last sequence whose publisher is accounted for."""
    numbers: dict[int, int]
    """By publisher, up to where all its messages are kept."""
    beyond: dict[int, list[int]] = {}
    """And which are kept beyond that."""
    bearers: dict[int, str] = {}
    """And whose it is, as far as that is known."""


T = TypeVar("T")


def read_document(path: Path, kind: type[T]) -> T:
    try:
        return json_decoder(kind).decode(path.read_bytes())
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"is damaged: {error}", where=str(path)) from None
