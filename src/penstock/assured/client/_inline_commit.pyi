from typing import Any

from penstock.assured.core.session._publish_window import PublishWindow
from penstock.assured.wire._frames import FrameSplitter
from penstock.net._tcp import Receiver

class InlineLink:
    def __init__(
        self, fd: int, splitter: FrameSplitter, receiver: Receiver, named: dict[int, Any], wake_fd: int
    ) -> None: ...
    is_busy: bool
    is_wanted: bool
    uses: int
    unsent: bytes
    pieces: list[tuple[bool, bytes]]
    def reclaim(self) -> bool: ...
    def exchange(
        self, window: PublishWindow, handle: int, number: int, timeout_ns: int, refused: list[tuple[int, int, int]]
    ) -> bool: ...
