"""The keys for packet authentication, as issued by the administration server.

        tag key    HKDF-SHA256(key, info = "penstock tag 1"), 16 bytes: the key of SipHash
(penstock.wire.authentication)

A scope is a feed, the stream of a client's publisher, or PUBLISHERS for other publishers of clients. The keys of a
scope go to its publishers, to filter modules, and to receivers that may join its multicast groups. Keys are symmetric:
a receiver of a scope can also forge its packets.
"""

from functools import lru_cache

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from penstock.security.core.brokering import Authentication
from penstock.security.core.sealing import StreamKey
from penstock.wire.authentication import KEY_SIZE, AuthenticationKey, AuthenticationScope, VouchedPublisher

PUBLISHERS = "@publishers"
"""The scope of publishers that belong to no feed; no feed can have this name."""


def is_publisher_scope(scope: str) -> bool:
    """True for the stream of a client's publisher, @CLIENT/SUBSCRIPTION."""
    return scope.startswith("@") and "/" in scope


@lru_cache(maxsize=4_096)
def tag_key(key: StreamKey) -> AuthenticationKey:
    """Derive the key for the authentication trailers."""
    derived = HKDF(SHA256(), KEY_SIZE, salt=None, info=b"penstock tag 1").derive(key.key)
    return AuthenticationKey(key.key_id, derived)


def is_older(told: Authentication, held: Authentication | None) -> bool:
    """True if `told` is older than `held`, because an event overtook an answer, or the server has been replaced. An
    older value would activate a replaced key again."""
    return held is not None and told.issuer == held.issuer and told.number < held.number


def scope_of(told: Authentication) -> AuthenticationScope:
    """Convert the server's document for penstock.wire.Authenticator."""
    publishers = {each.publisher_id: each for each in told.publishers}
    return AuthenticationScope(
        told.scope,
        tuple(tag_key(key) for key in {each.key_id: each for each in told.keys}.values()),
        told.active_key_id,
        tuple(VouchedPublisher(each.publisher_id, each.epoch_first, each.epoch_last) for each in publishers.values()),
    )
