"""Errors for the refusals of a server, and the refusals that end a client."""

from collections.abc import Collection, Mapping

from penstock.base.errors import PenstockError, RefusedError

TOKEN_CODES = frozenset({"token", "token-expired"})
"""Refusals that a newer token may resolve."""


def by_code(*kinds: type[PenstockError]) -> dict[str, type[PenstockError]]:
    return {kind.code: kind for kind in kinds}


class RefusalErrors:
    """Errors of one protocol. `server` is the name of the other side in errors: agent, router. `kinds` has the error
    of each code (by_code()); other codes are a RefusedError. `final` has the codes that another attempt would not
    change. A code of `token` is final for a client that was never accepted: its first token is wrong."""

    def __init__(
        self,
        server: str,
        kinds: Mapping[str, type[PenstockError]],
        *,
        final: Collection[str],
        token: Collection[str] = TOKEN_CODES,
    ) -> None:
        self._server = server
        self._kinds = dict(kinds)
        self._final = frozenset(final)
        self._token = frozenset(token)

    def is_final(self, code: str, *, was_welcome: bool) -> bool:
        return code in self._final or (code in self._token and not was_welcome)

    def error_of(self, code: str, reason: str, *, hint: str = "") -> PenstockError:
        kind = self._kinds.get(code)
        if kind is not None:
            return kind(reason, hint=hint)
        return RefusedError(f"the {self._server} refuses: {reason}", peer_code=code, hint=hint)
