"""Decoders by type, made once and one at a time.

What msgspec knows of a nested type is to be seen by other threads before it is whole: two that decode something for the
first time, at the same time, with a type in common, can end the process (a read at address 0).
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What bytes of others make a decoder raise: for texts that are none and lists in lists in lists, no MsgspecError."""

_lock = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T] | None) -> msgspec.json.Decoder[T]:
    """Of a type of this program's, or of null: it is kept for ever."""
    found = _json.get(kind)
    if found is None:
        with _lock:
            found = _json[kind] = msgspec.json.Decoder(kind)
    return found


def msgpack_decoder(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    found = _msgpack.get(kind)
    if found is None:
        with _lock:
            found = _msgpack[kind] = msgspec.msgpack.Decoder(kind)
    return found
