"""Arguments of an application's calls. For speed, publishing examines them only after an error."""

import math
import operator
import threading
import time
from numbers import Real

from typing_extensions import Buffer

from penstock.assured.config import Treatment
from penstock.assured.wire._layout import MESSAGE_WANTS_ASYNC, MESSAGE_WANTS_SYNC, PRIORITY_MAX
from penstock.base.errors import LocalProtocolError
from penstock.model import Message

FLAGS: dict[Treatment, int] = {"none": 0, "asynchronous": MESSAGE_WANTS_ASYNC, "synchronous": MESSAGE_WANTS_SYNC}
OPTION_MAX = {"priority": PRIORITY_MAX, "ttl_ms": 2**32 - 1, "model_id": 2**16 - 1, "model_version": 2**16 - 1}


def payload_bytes(payload: Buffer | Message) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, str):
        raise LocalProtocolError("a payload is bytes, not text", hint="encode it: text.encode()")
    try:
        return bytes(memoryview(payload))
    except TypeError:
        raise LocalProtocolError(
            f"a payload is bytes, or a message of a model, not {_kind(payload)}", hint='b"" is an empty payload'
        ) from None


def deadline_after(timeout: float | None) -> float | None:
    """The time of the monotonic clock after this many seconds; None: no deadline."""
    if timeout is None:
        return None
    if not isinstance(timeout, float | int | Real) or math.isnan(timeout):
        raise LocalProtocolError(f"invalid timeout {timeout!r}", hint="seconds, or None: no timeout")
    return None if timeout >= threading.TIMEOUT_MAX else time.monotonic() + float(timeout)


def whole_number(value: int, name: str, largest: int) -> int:
    """Check that the value is a whole number from 1 to `largest`."""
    if not hasattr(value, "__index__") or not 0 < operator.index(value) <= largest:
        raise LocalProtocolError(f"invalid {name} {value!r}", hint=f"1 to {largest:,}")
    return value


def unfit(error: Exception, topic: object, replication: object, **options: object) -> Exception:
    """The error for these arguments of a message, from which making the message raised `error`."""
    if not isinstance(topic, str):
        return LocalProtocolError(f"a topic is text, not {_kind(topic)}", hint='"orders.new"')
    if replication not in list(FLAGS):
        return LocalProtocolError(f"unknown replication {replication!r}", hint=", ".join(FLAGS))
    for name, value in options.items():
        if not hasattr(value, "__index__"):
            return LocalProtocolError(f"invalid {name} {value!r}", hint=f"a whole number, 0 to {OPTION_MAX[name]:,}")
        if not 0 <= operator.index(value) <= OPTION_MAX[name]:
            return LocalProtocolError(f"invalid {name} {value!r}", hint=f"0 to {OPTION_MAX[name]:,}")
    return error


def _kind(value: object) -> str:
    return "None" if value is None else type(value).__name__
