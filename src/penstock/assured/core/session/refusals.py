"""The errors that applications get for routers' refusals."""

from penstock.assured.wire.control import FlowEnded, Refused
from penstock.base.errors import (
    LimitError,
    NotEntitledError,
    PenstockError,
    RevokedError,
    TokenError,
    TokenExpiredError,
)
from penstock.net.core.refusal_errors import RefusalErrors, by_code

REFUSALS = RefusalErrors(
    "router",
    by_code(LimitError, NotEntitledError, RevokedError, TokenError, TokenExpiredError)
    | {"not_entitled": NotEntitledError, "limit": LimitError},
    final={"revoked", "not-entitled", "not_entitled", "remote-protocol", "malformed", "replaced"},
)


def error_of(refusal: Refused | FlowEnded) -> PenstockError:
    hint = ""
    if isinstance(refusal, Refused):
        hint = f"the other router of the pair is at {refusal.place}" if refusal.place else refusal.hint
    return REFUSALS.error_of(refusal.code, refusal.reason, hint=hint)
