"""What a publisher has sent and has no acknowledgement for."""

from typing_extensions import Buffer

from penstock.assured.wire.control import EndpointNamed

class PublishWindow:
    """Numbers go on from `first`; at most `messages_max` of them, and `bytes_max` bytes, are without an outcome."""

    messages_max: int
    bytes_max: int
    payload_size_max: int
    """That the router takes."""
    next_number: int
    unresolved: int
    """The lowest number without an outcome; next_number: there is none."""
    waiting_bytes: int
    refused: int
    """Messages that were, in all."""

    def __init__(self, messages_max: int, bytes_max: int, first: int = 1) -> None: ...
    @property
    def room(self) -> int:
        """Messages that can be put in now."""
    @property
    def is_unsent(self) -> bool: ...
    def begin_at(self, first: int) -> None:
        """Before the first message: the router has seen numbers below this one."""
    def put(
        self,
        topic: str,
        payload: bytes,
        priority: int,
        flags: int,
        model_id: int,
        model_version: int,
        ttl_ms: int,
        transaction: int,
    ) -> int:
        """The message's number; 0 if there is no room."""
    def rewind(self) -> None:
        """On another link everything without an outcome is sent again."""
    def pass_over(self, transaction: int) -> None:
        """The router on this link has its messages, and its commit: they are not sent again."""
    def take(self, handle: int) -> bytes:
        """Frames with everything that was not sent on this link."""
    def acknowledge(self, frame: Buffer, named: dict[int, EndpointNamed] = ...) -> list[tuple[int, int, int]]:
        """Take in an ACKNOWLEDGE, without its length; `named` has the endpoints of the numbers in it. Runs of it that
        were refused: (first, last, outcome)."""
    def end_transaction(self, transaction: int, outcome: int) -> None:
        """It was committed, or rolled back: that is the outcome of all its messages."""
    def outcome_of(self, number: int) -> int:
        """Of a message; 0: none yet. It is known until 65,536 more have one."""
    def full_endpoint(self, number: int) -> tuple[EndpointNamed, int] | None:
        """What had no room for a message that was refused for that, and which limit; None: it is not known."""
    def outcome_counts(self) -> dict[int, int]:
        """{outcome: messages}."""
