"""The keys for packet authentication, as issued by the administration server.

    tag key    HKDF-SHA256(key, info = "penstock tag 1"), 16 bytes: the key of SipHash (penstock.wire.authentication)

A scope is a feed, or PUBLISHERS for the publishers that clients have besides. Its keys go to its publishers, to filter
modules and to receivers that may have its multicast. All of them have the same keys: who may receive a scope could also
forge its packets.
"""

from functools import lru_cache

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.security.core.brokering import Authentication
from penstock.security.core.sealing import StreamKey
from penstock.wire.authentication import KEY_SIZE, AuthenticationKey, AuthenticationScope, VouchedPublisher

PUBLISHERS = "@publishers"
"""The scope of publishers that belong to no feed; no feed has such a name."""


@lru_cache(maxsize=4_096)
def tag_key(key: StreamKey) -> AuthenticationKey:
    """The key that trailers are made with."""
    derived = HKDF(SHA256(), KEY_SIZE, salt=None, info=b"penstock tag 1").derive(key.key)
    return AuthenticationKey(key.key_id, derived)


def is_older(told: Authentication, held: Authentication | None) -> bool:
    """True if `told` is from before `held`: an answer that an event has overtaken, or the state of a server that has
    been replaced. Such a value would activate a replaced key again."""
    return held is not None and told.issuer == held.issuer and told.number < held.number


def scope_of(told: Authentication) -> AuthenticationScope:
    """What the server told, for penstock.wire.Authenticator."""
    publishers = {each.publisher_id: each for each in told.publishers}
    return AuthenticationScope(
        told.scope,
        tuple(tag_key(key) for key in {each.key_id: each for each in told.keys}.values()),
        told.active_key_id,
        tuple(VouchedPublisher(each.publisher_id, each.epoch_first, each.epoch_last) for each in publishers.values()),
    )
