"""Authentication of datagrams: keys, the publishers they are for, and the accepted epochs.

docs/reference/protocol/packet.md draws the trailer; _authentication.pyx writes and checks it.
"""

import msgspec

KEY_SIZE = 16
"""Size of a SipHash key in bytes."""


class AuthenticationKey(msgspec.Struct, frozen=True):
    """A key for trailers. Ids are unique among all scopes of one administration server, and never 0."""

    key_id: int
    key: bytes

    def __repr__(self) -> str:
        return f"AuthenticationKey({self.key_id}, hidden)"


class VouchedPublisher(msgspec.Struct, frozen=True):
    """A publisher id, and the inclusive range of epochs in which its packets are accepted."""

    publisher_id: int
    epoch_first: int
    epoch_last: int


class AuthenticationScope(msgspec.Struct, frozen=True):
    """Publishers that share keys: those of one feed. A key is valid only for the publishers of its scope."""

    name: str
    keys: tuple[AuthenticationKey, ...] = ()
    active_key_id: int = 0
    """The key for creating trailers; 0: none yet."""

    publishers: tuple[VouchedPublisher, ...] = ()
