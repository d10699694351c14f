"""Data frames of assured messaging: invalid bytes are never accepted as a frame."""

import struct

import pytest

from penstock.assured.wire._layout import FRAME_SIZE_MAX, PAYLOAD_SIZE_MAX
from penstock.assured.wire.frames import (
    Credit,
    Delivered,
    FrameSplitter,
    Published,
    check_frames,
    decode_frames,
    encode_acknowledge,
    encode_credit,
    encode_deliver,
    encode_publish,
    encode_settle,
)
from penstock.base.errors import LimitError, LocalProtocolError, RemoteProtocolError

FRAMES = [
    encode_publish(1, 7, [Published(b"a.b", b"x" * 5), Published(b"", b"")]),
    encode_acknowledge(1, [(7, 8, 1)]),
    encode_deliver(2, [Delivered(5, b"a.b", b"x" * 5), Delivered(6, b"a", b"")]),
    encode_settle(2, [(5, 6, 1)]),
    encode_credit(2, 100),
]


@pytest.mark.parametrize("frame", FRAMES)
def test_every_truncation_and_every_trailing_byte_is_refused(frame: bytes) -> None:
    assert check_frames(frame) == 1
    content = frame[4:]
    for size in range(1, len(content)):
        with pytest.raises(RemoteProtocolError):
            check_frames(struct.pack("<I", size) + content[:size])
    for more in (1, 8, 24, 56):
        with pytest.raises(RemoteProtocolError):
            check_frames(struct.pack("<I", len(content) + more) + content + bytes(more))
    for size in range(1, len(frame)):
        with pytest.raises(RemoteProtocolError, match="whole frames"):
            check_frames(frame[:size])


def changed(frame: bytes, at: int, layout: str, value: int) -> bytes:
    data = bytearray(frame)
    struct.pack_into(layout, data, 4 + at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("frame", "at", "layout", "value", "what"),
    [
        (FRAMES[0], 0, "<B", 13, "kind"),
        (FRAMES[0], 2, "<H", 3, "the number of its parts"),
        (FRAMES[0], 2, "<H", 0, "the number of its parts"),
        (FRAMES[0], 2, "<H", 1, "the number of its parts"),
        (FRAMES[0], 16, "<Q", 0, "invalid value"),
        (FRAMES[0], 24, "<I", 2**32 - 8, "sizes of its parts"),
        (FRAMES[0], 24, "<I", 40 + 8, "sizes of its parts"),
        (FRAMES[0], 28, "<I", 2**32 - 1, "sizes of its parts"),
        (FRAMES[0], 28, "<I", 14, "sizes of its parts"),
        (FRAMES[0], 32, "<H", 300, "sizes of its parts"),
        (FRAMES[0], 34, "<B", 10, "invalid value"),
        (FRAMES[1], 8, "<Q", 9, "invalid value"),
        (FRAMES[1], 24, "<B", 0, "invalid value"),
        (FRAMES[2], 8, "<I", 2**32 - 8, "sizes of its parts"),
        (FRAMES[2], 12, "<I", 2**31, "sizes of its parts"),
        (FRAMES[3], 2, "<H", 2, "the number of its parts"),
        (encode_settle(2, [(5, 6, 1), (7, 9, 1)]), 40, "<Q", 6, "invalid value"),
    ],
)
def test_an_inconsistent_frame_is_refused(frame: bytes, at: int, layout: str, value: int, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        check_frames(changed(frame, at, layout, value))
    with pytest.raises(RemoteProtocolError, match=what):
        decode_frames(changed(frame, at, layout, value))


def test_values_that_no_frame_can_hold_are_refused() -> None:
    with pytest.raises(LimitError):
        encode_publish(1, 1, [])
    with pytest.raises(LimitError):
        encode_publish(1, 1, [Published(b"t" * 256, b"")])
    with pytest.raises(LimitError):
        encode_publish(1, 1, [Published(b"t", bytes(PAYLOAD_SIZE_MAX + 1))])
    with pytest.raises(LimitError):
        encode_publish(1, 1, [Published(b"t", bytes(PAYLOAD_SIZE_MAX))] * 2)
    with pytest.raises(LocalProtocolError, match="priority"):
        encode_publish(1, 1, [Published(b"t", b"", priority=10)])
    with pytest.raises(LimitError):
        encode_settle(1, [])


def test_the_largest_message_fits_a_frame() -> None:
    frame = encode_deliver(1, [Delivered(1, b"t" * 255, bytes(PAYLOAD_SIZE_MAX))])
    assert len(frame) - 4 <= FRAME_SIZE_MAX
    assert check_frames(frame) == 1


CONTROL = struct.pack("<I", 3) + b"\x81\xa1a"
STREAM = FRAMES[0] + FRAMES[4] + CONTROL + CONTROL + FRAMES[3]
WHOLE = [(True, FRAMES[0] + FRAMES[4]), (False, CONTROL[4:]), (False, CONTROL[4:]), (True, FRAMES[3])]


def test_bytes_of_a_link_are_divided_into_data_and_control_frames() -> None:
    assert FrameSplitter().feed(STREAM) == WHOLE


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 16, 50])
def test_the_division_does_not_depend_on_the_sizes_of_the_reads(size: int) -> None:
    splitter = FrameSplitter()
    found = [each for at in range(0, len(STREAM), size) for each in splitter.feed(STREAM[at : at + size])]
    data = b"".join(piece for is_data, piece in found if is_data)
    assert data == FRAMES[0] + FRAMES[4] + FRAMES[3]
    assert [piece for is_data, piece in found if not is_data] == [CONTROL[4:]] * 2
    assert splitter.failure == ""


@pytest.mark.parametrize("length", [0, 101, 2**32 - 1])
def test_a_frame_that_is_too_long_or_empty_invalidates_the_stream(length: int) -> None:
    splitter = FrameSplitter(100)
    assert splitter.feed(FRAMES[4] + struct.pack("<I", length) + FRAMES[4]) == [(True, FRAMES[4])]
    assert str(length) in splitter.failure
    assert splitter.feed(FRAMES[4]) == []


def test_a_frame_that_arrives_byte_by_byte_is_buffered_once() -> None:
    splitter = FrameSplitter()
    for at in range(len(FRAMES[4]) - 1):
        assert splitter.feed(FRAMES[4][at : at + 1]) == []
    ((is_data, frame),) = splitter.feed(FRAMES[4][-1:])
    assert is_data
    assert decode_frames(frame) == [Credit(2, 100)]
