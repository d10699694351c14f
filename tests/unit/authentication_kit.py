"""Keys and scopes for tests of authentic packets."""

from penstock.wire import AuthenticationKey, AuthenticationScope, Authenticator, VouchedPublisher
from unit.middleware_kit import PUBLISHER_ID

KEY = AuthenticationKey(7, bytes(range(16)))
NEXT_KEY = AuthenticationKey(8, bytes(range(1, 17)))


def scope(
    *keys: AuthenticationKey, publisher_id: int = PUBLISHER_ID, first: int = 1, last: int = 1
) -> AuthenticationScope:
    """The scope of one publisher; trailers are computed with the last key."""
    held = keys or (KEY,)
    return AuthenticationScope("feed", held, held[-1].key_id, (VouchedPublisher(publisher_id, first, last),))


def authentic(packet: bytes, *keys: AuthenticationKey) -> bytes:
    """The datagram of a packet of the publisher, in any epoch."""
    return packet + Authenticator([scope(*keys, first=0, last=2**32 - 1)]).trailer(packet)
