"""Frames on a byte stream: four bytes of length (little-endian), then that many bytes. It does no I/O.

         0       1       2       3       4
       ┌───────────────────────────────┬──────────────────────┐
       │ length                        │ payload, length bytes│
       └───────────────────────────────┴──────────────────────┘

docs/reference/protocol/control.md says what Penstock puts into the frames of a control connection.
"""

from typing_extensions import Buffer

from penstock.base.errors import FrameError, LocalProtocolError

LENGTH_SIZE = 4
FRAME_SIZE_MAX = 2**32 - 1
"""Maximum size of a frame's payload; every connection has its own lower limit."""


def encode_frame(payload: Buffer) -> bytes:
    data = bytes(payload)
    if len(data) > FRAME_SIZE_MAX:
        raise LocalProtocolError(f"the payload has {len(data)} bytes", hint=f"the limit of a frame is {FRAME_SIZE_MAX}")
    return len(data).to_bytes(LENGTH_SIZE, "little") + data


class FrameDecoder:
    """Splits a byte stream into frames; buffers at most `size_max` + 4 bytes.

    A frame longer than `size_max` is an error as soon as its length has arrived. The stream is then unusable,
    because the start of the next frame is unknown, and every further feed fails too. `size_max` may be raised
    between two feeds, after the peer was authenticated.
    """

    def __init__(self, size_max: int) -> None:
        if not 0 <= size_max <= FRAME_SIZE_MAX:
            raise LocalProtocolError(f"invalid frame size limit {size_max}", hint=f"choose 0 to {FRAME_SIZE_MAX}")
        self.size_max = size_max
        self._kept = bytearray()
        self._failure = ""

    @property
    def kept_size(self) -> int:
        """Buffered bytes of an incomplete frame; above 0 at the end of a stream, the frame was truncated."""
        return len(self._kept)

    def take_kept(self) -> bytes:
        """Return the buffered bytes of an incomplete frame, and forget them."""
        kept, self._kept = bytes(self._kept), bytearray()
        return kept

    def feed(self, data: Buffer) -> list[bytes]:
        """Return the payloads that these bytes complete, in order.

        FrameError.frames has the payloads before the frame that is too long.
        """
        if self._failure:
            raise FrameError(self._failure)
        frames: list[bytes] = []
        with memoryview(data) as whole, whole.cast("B") as view:
            at = 0
            while at < len(view):
                taken = min(self._missing(), len(view) - at)
                self._kept += view[at : at + taken]
                at += taken
                if self._missing() == 0:
                    frames.append(bytes(memoryview(self._kept)[LENGTH_SIZE:]))
                    self._kept = bytearray()
                elif len(self._kept) == LENGTH_SIZE:
                    self._refuse_too_long(frames)
        return frames

    def _missing(self) -> int:
        """Bytes missing until the length is known, then until the frame is complete."""
        if len(self._kept) < LENGTH_SIZE:
            return LENGTH_SIZE - len(self._kept)
        return LENGTH_SIZE + int.from_bytes(self._kept[:LENGTH_SIZE], "little") - len(self._kept)

    def _refuse_too_long(self, frames: list[bytes]) -> None:
        length = int.from_bytes(self._kept, "little")
        if length > self.size_max:
            self._kept = bytearray()
            self._failure = f"the frame has {length} bytes, the limit is {self.size_max}"
            raise FrameError(self._failure, frames=frames)
