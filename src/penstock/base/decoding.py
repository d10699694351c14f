"""Decoders by type, each created once under a lock.

msgspec publishes its information about a nested type to other threads before the information is complete. Two threads
that create decoders with a common type at the same time can crash the process (a read at address 0).
"""

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Exceptions for malformed input. Invalid UTF-8 and deep nesting do not raise MsgspecError."""

_lock = threading.Lock()
_json: dict[Any, msgspec.json.Decoder[Any]] = {}
_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}


def json_decoder(kind: type[T] | None) -> msgspec.json.Decoder[T]:
    """Return the decoder of a type, or of any JSON value for None. Decoders are cached for ever, so types must be
    static.
    """
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
