"""Which datagrams count as authentic: keys, the publishers they are for, and the epochs the server vouches for.

docs/reference/protocol/packet.md draws the trailer; _authentication.pyx writes and checks it.
"""

import msgspec

KEY_SIZE = 16
"""Bytes of a key of SipHash."""


class AuthenticationKey(msgspec.Struct, frozen=True):
    """A key that trailers are made with. Ids are unique among all scopes of one administration server, and never 0."""

    key_id: int
    key: bytes

    def __repr__(self) -> str:
        return f"AuthenticationKey({self.key_id}, hidden)"


class VouchedPublisher(msgspec.Struct, frozen=True):
    """A publisher id, and the epochs in which its packets are accepted; both ends are included."""

    publisher_id: int
    epoch_first: int
    epoch_last: int


class AuthenticationScope(msgspec.Struct, frozen=True):
    """Publishers that share keys: those of one feed. A key is good for the publishers of its scope only."""

    name: str
    keys: tuple[AuthenticationKey, ...] = ()
    active_key_id: int = 0
    """The key that trailers are made with here; 0 while there is none."""

    publishers: tuple[VouchedPublisher, ...] = ()
