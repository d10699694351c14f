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
"""Bytes that a frame can carry at all; every connection has a lower bound of its own."""


def encode_frame(payload: Buffer) -> bytes:
    data = bytes(payload)
    if len(data) > FRAME_SIZE_MAX:
        raise LocalProtocolError(f"a frame cannot carry {len(data)} bytes", hint=f"at most {FRAME_SIZE_MAX}")
    return len(data).to_bytes(LENGTH_SIZE, "little") + data


class FrameDecoder:
    """Takes a stream's bytes as they come and gives its frames; keeps at most `size_max` + 4 bytes.

    A frame that says it is longer than `size_max` is an error as soon as its length is there, whatever of it has
    come. Then the stream is spoilt: nothing says where its next frame begins, and every further feed fails as well.
    `size_max` may be raised between two feeds, for a peer that has become known.
    """

    def __init__(self, size_max: int) -> None:
        if not 0 <= size_max <= FRAME_SIZE_MAX:
            raise LocalProtocolError(f"frames of {size_max} bytes cannot be", hint=f"0 to {FRAME_SIZE_MAX}")
        self.size_max = size_max
        self._kept = bytearray()
        self._failure = ""

    @property
    def kept_size(self) -> int:
        """Bytes of a frame that is not whole yet; above 0 at the end of a stream, it was cut."""
        return len(self._kept)

    def feed(self, data: Buffer) -> list[bytes]:
        """The payloads that these bytes complete, in order.

        FrameError.frames has those which came before the one that is too long.
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
        """Bytes until the length is known, then until the frame is whole."""
        if len(self._kept) < LENGTH_SIZE:
            return LENGTH_SIZE - len(self._kept)
        return LENGTH_SIZE + int.from_bytes(self._kept[:LENGTH_SIZE], "little") - len(self._kept)

    def _refuse_too_long(self, frames: list[bytes]) -> None:
        length = int.from_bytes(self._kept, "little")
        if length > self.size_max:
            self._kept = bytearray()
            self._failure = f"a frame of {length} bytes, at most {self.size_max} are taken"
            raise FrameError(self._failure, frames=frames)
