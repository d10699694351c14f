"""Events as they travel between nodes by UDP: cut apart, and put together in messages."""

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from penstock.engine.core.kernel._event import (
    EVENT_BODY_SIZE_AT,
    EVENT_CLASS_AT,
    EVENT_HEAD_SIZE,
    EVENT_ITEM_AT,
    EVENT_KIND_AT,
    EVENT_PADDING,
    EVENT_VERSION_AT,
)
from penstock.middleware import PublisherConfig
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.net.udp import Address
from penstock.wire import AuthenticationKey

TOPIC = f"{RESERVED_PREFIX}distribution"
BLOCK_SIZE_MAX = 32_768
"""Bytes of events in one message."""

EPOCH = 1
FORGETFUL = PublisherConfig(retransmission_packets_max=1, linger_ms=1)
"""Of a stream of which nothing is kept."""


class Cut(NamedTuple):
    """One event."""

    item: int
    kind: int
    cls: int
    version: int
    data: bytes


class Sender(Protocol):
    """Of datagrams; called under the data path's lock."""

    def send(self, data: bytes, /) -> None:
        """Whole events."""


class Publishing(Protocol):
    """A stream of packets, as middleware.driver.MulticastPublisher makes it."""

    @property
    def publisher_id(self) -> int: ...

    @property
    def address(self) -> Address: ...

    @property
    def next_sequence(self) -> int: ...

    def publish(self, topic: str, payload: bytes) -> None: ...

    def authenticate(self, keys: Sequence[AuthenticationKey], active_key_id: int) -> None: ...

    def close(self, *, linger: bool = True) -> None: ...


Publish: TypeAlias = Callable[..., Publishing]
"""Opens one; it is given what MulticastPublisher() is."""


def cut_events(data: bytes) -> Iterator[Cut]:
    """Of this node's own engine, which makes them well."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + EVENT_BODY_SIZE_AT)
        end = at + EVENT_HEAD_SIZE + -(-size // EVENT_PADDING) * EVENT_PADDING
        (item,) = struct.unpack_from("<I", data, at + EVENT_ITEM_AT)
        (version,) = struct.unpack_from("<Q", data, at + EVENT_VERSION_AT)
        yield Cut(item, data[at + EVENT_KIND_AT], data[at + EVENT_CLASS_AT], version, data[at:end])
        at = end


def blocks_of(events: Iterable[Cut], size_max: int) -> Iterator[list[Cut]]:
    """In their order, as many together as there is room for; a larger one is alone."""
    block: list[Cut] = []
    size = 0
    for event in events:
        if block and size + len(event.data) > size_max:
            yield block
            block, size = [], 0
        block.append(event)
        size += len(event.data)
    if block:
        yield block


def joined(block: Iterable[Cut]) -> bytes:
    return b"".join(each.data for each in block)
