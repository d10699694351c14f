"""The link to the other router of a pair, without I/O."""

from collections.abc import Callable

from penstock.assured.core.pair.protocol import Message, PeerEnd, PeerInstruction, PeerSend, Standing, encode


class PeerLink:
    """Without a link nothing is sent. `peer` is the other router's last Standing, while there is a link."""

    def __init__(self, emit: Callable[[PeerInstruction], None]) -> None:
        self.number: int | None = None
        self.peer: Standing | None = None
        self._emit = emit

    def heard(self, peer: Standing) -> str:
        """Return the change of its disk state to log, if any."""
        was_storing = self.peer is None or self.peer.is_storing
        self.peer = peer
        if peer.is_storing == was_storing:
            return ""
        return "other_disk_recovered" if peer.is_storing else "other_disk_troubled"

    def say(self, message: Message) -> None:
        if self.number is not None:
            self._emit(PeerSend(self.number, encode(message)))

    def send(self, frames: list[bytes]) -> None:
        """Send all frames and empty the list."""
        if frames and self.number is not None:
            self._emit(PeerSend(self.number, b"".join(frames)))
        frames.clear()

    def end(self, why: str) -> None:
        if self.number is not None:
            self._emit(PeerEnd(self.number, why))

    def forget(self) -> None:
        self.number = self.peer = None
