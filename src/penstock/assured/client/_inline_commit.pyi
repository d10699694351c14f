from typing import Any

from penstock.assured.core.session._publish_window import PublishWindow
from penstock.assured.wire._frames import FrameSplitter
from penstock.net._tcp import Receiver

class Readiness:
    """`fd`, an epoll that an asyncio loop watches, is readable while the attached link has data."""

    fd: int

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
    def attach(self, readiness: Readiness) -> bool:
        """Attach the readiness to this link. False if another readiness is attached."""
    def send(self, window: PublishWindow, handle: int, readiness: Readiness) -> bool:
        """Send a publisher's unsent messages without waiting. False if they were not sent."""
    def receive(
        self, window: PublishWindow, handle: int, readiness: Readiness, refused: list[tuple[int, int, int]]
    ) -> bool:
        """Handle received acknowledgements without waiting; True if any were received."""
    def exchange(
        self, window: PublishWindow, handle: int, number: int, timeout_ns: int, refused: list[tuple[int, int, int]]
    ) -> bool: ...
