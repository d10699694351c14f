"""The compiled part of Fanout."""

from enum import IntEnum

class Brings(IntEnum):
    """What may come on a link besides control frames, joined with |; anything else ends it."""

    NOTHING = 0
    PACKETS = 1
    """Live blocks, and blocks of legs: from a parent or a peer."""
    INFO = 2
    """The infostream: from an agent."""
    PUBLISHED = 4
    """Blocks of a publisher."""

class LinkClass(IntEnum):
    """What becomes of a child that does not keep up."""

    LOSSLESS = 0
    """It leaves live, and fetches what it missed when it reads again."""
    CONFLATING = 1
    """It gets the newest on each topic."""
    DISCONNECT = 2
    """It is cut off."""

class Flow:
    def __init__(
        self,
        tree_id: int,
        *,
        history_size: int = ...,
        streams_max: int = ...,
        links_max: int = ...,
        legs_max: int = ...,
        wants_max: int = ...,
        queue_packets_max: int = ...,
        words_size_max: int = ...,
        topics_waiting_max: int = ...,
    ) -> None: ...
    @property
    def tree_id(self) -> int: ...
