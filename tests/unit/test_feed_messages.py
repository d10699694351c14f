"""The encoding of messages between adapters."""

import msgspec
import pytest

from penstock.base.errors import RemoteProtocolError
from penstock.feed.core.sync.messages import (
    PROTOCOL,
    AdapterState,
    Announced,
    ImageBegin,
    ImageChunk,
    ImageRefused,
    ImageRequest,
    StreamState,
    SyncMessage,
    TakeOver,
)

MESSAGES: list[SyncMessage] = [
    AdapterState(3, 2**32 - 1, True, True, False, True, 1_000),
    Announced(16_384, 1, 0, 1, b"{}"),
    StreamState(16_384, 1, "DAY1", 2**63 - 1, 17, 2**64 - 1, 2**64 - 2),
    ImageRequest(16_384, 1, 2, 100, bytes(16)),
    ImageBegin(16_384, 1, 2, "DAY1", 120, 130, 5),
    ImageChunk(1, 2, 0, b"units"),
    ImageRefused(1, 2, "not the active adapter"),
    TakeOver(16_384, 1, 24),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_is_decoded_unchanged_and_a_truncated_one_is_not(message: SyncMessage) -> None:
    data = PROTOCOL.encode(message, 4_096)
    assert PROTOCOL.decode(data) == message
    for size in range(len(data)):
        with pytest.raises(RemoteProtocolError):
            PROTOCOL.decode(data[:size])


@pytest.mark.parametrize(
    "field", [{"index": 16}, {"term": 2**32}, {"health": 1_001}, {"term": -1}, {"is_active": 1}, {"term": None}]
)
def test_values_out_of_bounds_are_refused(field: dict[str, object]) -> None:
    content = msgspec.to_builtins(MESSAGES[0]) | field
    with pytest.raises(RemoteProtocolError):
        PROTOCOL.decode(msgspec.msgpack.encode(content))


def test_the_bytes_are_msgpack_maps_with_a_type() -> None:
    plain = msgspec.msgpack.decode(PROTOCOL.encode(MESSAGES[2], 4_096))
    assert plain == {
        "type": "stream-state",
        "term": 16_384,
        "stream_id": 1,
        "session": "DAY1",
        "next_source_sequence": 2**63 - 1,
        "next_message_sequence": 17,
        "digest": 2**64 - 1,
        "plan": 2**64 - 2,
    }
