"""Frames survive any cuts of their stream, and the decoder never keeps more than it reports."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.net import FrameDecoder, encode_frame

SIZE_MAX = 64


@given(st.lists(st.binary(max_size=SIZE_MAX), max_size=20), st.data())
def test_round_trip_through_any_chunks(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(payload) for payload in payloads)
    decoder = FrameDecoder(SIZE_MAX)
    frames: list[bytes] = []
    at = 0
    while at < len(stream):
        size = data.draw(st.integers(1, len(stream) - at))
        frames += decoder.feed(stream[at : at + size])
        assert decoder.kept_size < SIZE_MAX + 4
        at += size
    assert frames == payloads
