"""What routers' refusals are to an application."""

from penstock.assured.wire.control import FlowEnded, Refused
from penstock.base.errors import (
    LimitError,
    NotEntitledError,
    PenstockError,
    RefusedError,
    RevokedError,
    TokenError,
    TokenExpiredError,
)

_KINDS: tuple[type[PenstockError], ...] = (LimitError, NotEntitledError, RevokedError, TokenError, TokenExpiredError)
ERRORS = {kind.code: kind for kind in _KINDS} | {"not_entitled": NotEntitledError, "limit": LimitError}

FINAL_CODES = frozenset({"revoked", "not-entitled", "not_entitled", "remote-protocol", "malformed", "replaced"})
"""Refusals of a client that another attempt would not change."""

TOKEN_CODES = frozenset({"token", "token-expired"})


def error_of(refusal: Refused | FlowEnded) -> PenstockError:
    hint = ""
    if isinstance(refusal, Refused):
        hint = f"the other router of the pair is at {refusal.place}" if refusal.place else refusal.hint
    kind = ERRORS.get(refusal.code)
    if kind is not None:
        return kind(refusal.reason, hint=hint)
    return RefusedError(f"the router refuses: {refusal.reason}", peer_code=refusal.code, hint=hint)
