"""Frames on a byte stream, for any division into reads."""

import pytest

from penstock.base.errors import FrameError, LocalProtocolError, RemoteProtocolError
from penstock.net import FrameDecoder, encode_frame

SIZE_MAX = 1_000
PAYLOADS = [b"", b"a", b"four", b"\0" * 17, b"x" * SIZE_MAX]
STREAM = b"".join(encode_frame(payload) for payload in PAYLOADS)
TOO_LONG = (SIZE_MAX + 1).to_bytes(4, "little")


def test_whole_frames() -> None:
    assert FrameDecoder(SIZE_MAX).feed(STREAM) == PAYLOADS


def test_byte_by_byte() -> None:
    decoder = FrameDecoder(SIZE_MAX)
    assert [frame for byte in STREAM for frame in decoder.feed(bytes([byte]))] == PAYLOADS


def test_every_truncation_gives_the_complete_frames_and_keeps_the_rest() -> None:
    ends = [sum(4 + len(payload) for payload in PAYLOADS[:count]) for count in range(len(PAYLOADS) + 1)]
    for size in range(len(STREAM) + 1):
        decoder = FrameDecoder(SIZE_MAX)
        whole = sum(1 for end in ends[1:] if end <= size)
        assert decoder.feed(STREAM[:size]) == PAYLOADS[:whole]
        assert decoder.kept_size == size - ends[whole]
        assert decoder.feed(STREAM[size:]) == PAYLOADS[whole:]
        assert decoder.kept_size == 0


def test_trailing_bytes_wait_for_their_frame() -> None:
    decoder = FrameDecoder(SIZE_MAX)
    assert decoder.feed(encode_frame(b"one") + b"\5\0") == [b"one"]
    assert decoder.feed(b"\0\0hello") == [b"hello"]


def test_a_frame_of_length_zero_is_valid() -> None:
    assert encode_frame(b"") == bytes(4)
    assert FrameDecoder(0).feed(bytes(8)) == [b"", b""]


@pytest.mark.parametrize("length", [SIZE_MAX + 1, 2**31, 2**32 - 1])
def test_a_frame_that_is_too_long_is_refused_by_its_length_alone(length: int) -> None:
    decoder = FrameDecoder(SIZE_MAX)
    with pytest.raises(FrameError, match=str(length)):
        decoder.feed(length.to_bytes(4, "little"))
    assert decoder.kept_size == 0


def test_after_an_error_no_more_bytes_are_accepted() -> None:
    decoder = FrameDecoder(SIZE_MAX)
    for data in (TOO_LONG, encode_frame(b"good"), b""):
        with pytest.raises(RemoteProtocolError, match="1001"):
            decoder.feed(data)


@pytest.mark.parametrize("step", [1, 3, 4, len(STREAM) + 4])
def test_frames_before_the_invalid_one_are_returned(step: int) -> None:
    decoder = FrameDecoder(SIZE_MAX)
    stream = STREAM + TOO_LONG
    *firsts, last = [stream[at : at + step] for at in range(0, len(stream), step)]
    frames = [frame for chunk in firsts for frame in decoder.feed(chunk)]
    with pytest.raises(FrameError) as caught:
        decoder.feed(last)
    assert frames + caught.value.frames == PAYLOADS


def test_any_buffer_type_is_accepted() -> None:
    decoder = FrameDecoder(SIZE_MAX)
    words = memoryview(encode_frame(b"four")).cast("I")
    assert decoder.feed(words) == [b"four"]
    assert decoder.feed(bytearray(encode_frame(bytearray(b"five")))) == [b"five"]


@pytest.mark.parametrize("size_max", [-1, 2**32])
def test_an_impossible_maximum_is_refused(size_max: int) -> None:
    with pytest.raises(LocalProtocolError):
        FrameDecoder(size_max)
