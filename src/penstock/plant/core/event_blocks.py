"""Events between nodes by UDP: split into single events, and joined to messages."""

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
"""Maximum number of bytes of events in one message."""

EPOCH = 1
FORGETFUL = PublisherConfig(retransmission_packets_max=1, linger_ms=1)
"""Configuration of a stream whose packets are not kept for repair."""


class Cut(NamedTuple):
    """One event and the fields that decide where it is sent."""

    item: int
    kind: int
    cls: int
    version: int
    data: bytes


class Sender(Protocol):
    """Sends events as datagrams. Called under the data path's lock."""

    def send(self, data: bytes, /) -> None:
        """Send complete events."""


class Publishing(Protocol):
    """A publisher of packets, such as middleware.driver.MulticastPublisher."""

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
"""Creates a publisher; has the parameters of MulticastPublisher()."""


def cut_events(data: bytes) -> Iterator[Cut]:
    """Split a block of complete events from this node's own engine, which are not checked."""
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from("<I", data, at + EVENT_BODY_SIZE_AT)
        end = at + EVENT_HEAD_SIZE + -(-size // EVENT_PADDING) * EVENT_PADDING
        (item,) = struct.unpack_from("<I", data, at + EVENT_ITEM_AT)
        (version,) = struct.unpack_from("<Q", data, at + EVENT_VERSION_AT)
        yield Cut(item, data[at + EVENT_KIND_AT], data[at + EVENT_CLASS_AT], version, data[at:end])
        at = end


def blocks_of(events: Iterable[Cut], size_max: int) -> Iterator[list[Cut]]:
    """Group events in their order into blocks of at most `size_max` bytes; a larger event is a block of its own."""
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
