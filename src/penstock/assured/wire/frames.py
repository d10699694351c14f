"""Data frames of assured messaging with named parts (docs/reference/protocol/assured.md).

Compiled code of routers and clients uses the frames in place; this module is for inspection in Python.
"""

from typing import Any, NamedTuple, TypeAlias

from typing_extensions import Buffer

from penstock.assured.wire._frames import (
    FrameSplitter,
    check_frames,
    encode_acknowledge,
    encode_credit,
    encode_deliver,
    encode_publish,
    encode_settle,
    take_apart,
)
from penstock.assured.wire._layout import (
    KIND_ACKNOWLEDGE,
    KIND_CREDIT,
    KIND_DELIVER,
    KIND_PUBLISH,
    KIND_SETTLE,
    PRIORITY_DEFAULT,
)

__all__ = [
    "Acknowledge",
    "Credit",
    "Deliver",
    "Delivered",
    "Frame",
    "FrameSplitter",
    "Publish",
    "Published",
    "Run",
    "Settle",
    "check_frames",
    "decode_frames",
    "encode_acknowledge",
    "encode_credit",
    "encode_deliver",
    "encode_publish",
    "encode_settle",
]


class Published(NamedTuple):
    """A message from a publisher to the router."""

    topic: bytes
    payload: bytes
    priority: int = PRIORITY_DEFAULT
    flags: int = 0
    model_id: int = 0
    model_version: int = 0
    ttl_ms: int = 0


class Delivered(NamedTuple):
    """A message from the router to a consumer."""

    id: int
    topic: bytes
    payload: bytes
    priority: int = PRIORITY_DEFAULT
    flags: int = 0
    model_id: int = 0
    model_version: int = 0
    deliveries: int = 0
    published_ns: int = 0
    publisher: int = 0
    number: int = 0
    given_up_by: int = 0
    """The source endpoint's number; `flags` have the reason."""


class Run(NamedTuple):
    """An inclusive range: of a publisher's numbers with their outcome, or of ids with their settlement."""

    first: int
    last: int
    what: int
    limit: int = 0
    endpoint: int = 0
    """For an outcome: the full endpoint, and its exceeded limit."""


class Publish(NamedTuple):
    publisher: int
    transaction: int
    first_number: int
    messages: list[Published]


class Acknowledge(NamedTuple):
    publisher: int
    runs: list[Run]


class Deliver(NamedTuple):
    flow: int
    messages: list[Delivered]


class Settle(NamedTuple):
    flow: int
    transaction: int
    runs: list[Run]


class Credit(NamedTuple):
    flow: int
    total: int


Frame: TypeAlias = Publish | Acknowledge | Deliver | Settle | Credit


def decode_frames(frames: Buffer) -> list[Frame]:
    """Decode consecutive data frames, each with its length. Raises RemoteProtocolError if one is invalid."""
    return [_named(each) for each in take_apart(frames)]


def _named(parts: tuple[Any, ...]) -> Frame:
    kind, *_, last = parts
    head: Any = parts[1:-1]
    if kind == KIND_PUBLISH:
        return Publish._make((*head, [Published(*each) for each in last]))
    if kind == KIND_DELIVER:
        return Deliver._make((*head, [Delivered(*each) for each in last]))
    if kind == KIND_ACKNOWLEDGE:
        return Acknowledge._make((*head, [Run(*each) for each in last]))
    if kind == KIND_SETTLE:
        return Settle._make((*head, [Run(*each) for each in last]))
    assert kind == KIND_CREDIT
    return Credit._make((*head, last))
