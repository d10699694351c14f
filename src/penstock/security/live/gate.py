"""TokenGate: checks the stream tokens of a server's clients with the newest state from the administration server."""

import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.decoding import DECODE_ERRORS, json_decoder
from penstock.base.errors import ConfigurationError, PenstockError, TokenError
from penstock.base.files import make_directory
from penstock.base.log import logger
from penstock.net.secret import read_private, replace_private
from penstock.security.core.brokering import EventBody, GenerationChanged, Registered, Revoked, Verification
from penstock.security.core.keys import PublicKey
from penstock.security.core.token import SKEW_S, Token, TokenVerifier

STATE_SIZE_MAX = 64 * 1024 * 1024

OTHER_KEYS_HINT = (
    "if this server is a new one, promote it until its generation is not lower than the known one, or stop this node, "
    "remove its tokens.json and start it"
)

log = logger("security.gate")


class TokenState(msgspec.Struct, frozen=True):
    """The keys, generation and revocations for checking tokens, as stored on the disk (JSON)."""

    token_keys: list[str]
    generation: int
    generation_since_ns: int
    revoked: list[Revoked]
    refused_through_ns: int = 0
    """Tokens that expire by this time are refused, because some of their revocations were dropped."""

    @property
    def age(self) -> tuple[int, int]:
        """Order of states; a later state has a higher value."""
        return self.generation, self.generation_since_ns


def split_soonest(state: TokenState, count: int) -> tuple[TokenState, list[Revoked]]:
    """Return the state with at most `count` revocations, and the dropped revocations, whose tokens expire soonest. A
    dropped revocation does not make its token valid: all tokens that expire by then are refused."""
    revoked = sorted(state.revoked, key=lambda each: each.until_ns)
    gone, kept = revoked[: len(revoked) - count], revoked[len(revoked) - count :]
    refused_through_ns = max(state.refused_through_ns, gone[-1].until_ns)
    log.warning("revocations_dropped", count=len(gone), kept=count, tokens_refused_that_expire_by_ns=refused_through_ns)
    return msgspec.structs.replace(state, revoked=kept, refused_through_ns=refused_through_ns), gone


def _fitting(state: TokenState) -> tuple[TokenState, bytes]:
    """Shorten the state until its file fits the size limit. Return both."""
    data = msgspec.json.encode(state)
    while len(data) > STATE_SIZE_MAX and state.revoked:
        state, _ = split_soonest(state, len(state.revoked) // 2)
        data = msgspec.json.encode(state)
    return state, data


def is_news(revoked: Revoked, known: Mapping[str, Revoked]) -> bool:
    before = known.get(revoked.subscription_id)
    return before is None or before.until_ns < revoked.until_ns


class TokenGate:
    """Checks tokens with the newest state from the administration server, also while the server is unavailable and
    after a restart: keys, generation and revocations are stored in one file, which is replaced atomically."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._state: TokenState | None = None
        self._verifier: TokenVerifier | None = None
        self.why_not = ""
        """The reason why tokens cannot be checked yet, if known."""
        if path is not None and path.exists():
            data = read_private(path, STATE_SIZE_MAX)
            try:
                self._use(json_decoder(TokenState).decode(data))
            except (*DECODE_ERRORS, PenstockError) as error:
                raise ConfigurationError(f"is not a token state: {error}", where=str(path)) from None

    @property
    def is_ready(self) -> bool:
        """True if tokens can be checked."""
        return self._verifier is not None

    def verify(self, text: str, now_ns: int) -> Token:
        if self._verifier is None:
            why = f": {self.why_not}" if self.why_not else ""
            raise TokenError(f"tokens cannot be checked here yet{why}", hint="try again later")
        return self._verifier.verify(text, now_ns)

    def renew(self, told: Registered | Verification) -> None:
        """Apply the server's current state. A server that has been replaced without knowing it cannot lower the
        generation or bring its token keys back, and no answer restores a revoked subscription, because the answer may
        be older than the event."""
        latest = TokenState(told.token_keys, told.generation, told.generation_since_ns, told.revoked)
        with self._lock:
            before = self._state
            if before is None:
                self._keep(latest)
                return
            if before.generation > latest.generation:
                if before.token_keys != latest.token_keys:
                    log.warning(
                        "other_token_keys", generation=latest.generation, known=before.generation, hint=OTHER_KEYS_HINT
                    )
                latest = before
            known = {each.subscription_id: each for each in before.revoked}
            known |= {each.subscription_id: each for each in told.revoked if is_news(each, known)}
            revoked, refused_through_ns = list(known.values()), before.refused_through_ns
            self._keep(msgspec.structs.replace(latest, revoked=revoked, refused_through_ns=refused_through_ns))

    @property
    def state(self) -> TokenState | None:
        """The current state."""
        return self._state

    def learn(self, told: TokenState, now_ns: int) -> list[Revoked]:
        """Merge the token state of another node while this node's administration server does not answer. A known
        revocation is never undone. `told` may be older than the current state, so only a later generation replaces
        token keys. Return the new revocations."""
        over_ns = now_ns - SKEW_S * NS_PER_SECOND  # tokens until then are refused by their age
        with self._lock:
            before = self._state or msgspec.structs.replace(told, generation=-1, revoked=[], refused_through_ns=0)
            is_later = told.age > before.age
            if not is_later and told.token_keys != before.token_keys:
                log.warning("other_token_keys", generation=told.generation, known=before.generation)
            known = {each.subscription_id: each for each in before.revoked if each.until_ns >= over_ns}
            news = [each for each in told.revoked if each.until_ns >= over_ns and is_news(each, known)]
            known |= {each.subscription_id: each for each in news}
            refused_through_ns = max(told.refused_through_ns, before.refused_through_ns)
            if is_later or news or refused_through_ns > before.refused_through_ns:
                latest = told if is_later else before
                revoked = list(known.values())
                self._keep(msgspec.structs.replace(latest, revoked=revoked, refused_through_ns=refused_through_ns))
            return news

    def note(self, event: EventBody) -> None:
        with self._lock:
            state = self._state
            if state is None:
                return
            if isinstance(event, Revoked):
                if not is_news(event, {each.subscription_id: each for each in state.revoked}):
                    return
                others = [each for each in state.revoked if each.subscription_id != event.subscription_id]
                self._keep(msgspec.structs.replace(state, revoked=[*others, event]))
            elif isinstance(event, GenerationChanged) and event.generation > state.generation:
                self._keep(
                    msgspec.structs.replace(state, generation=event.generation, generation_since_ns=event.since_ns)
                )

    def forget_expired(self, now_ns: int) -> None:
        """Drop revocations of tokens that have expired."""
        with self._lock:
            if self._verifier is None or self._state is None:
                return
            self._verifier.forget_expired(now_ns)
            if self._verifier.revoked_count < len(self._state.revoked):
                revoked = sorted(self._state.revoked, key=lambda each: each.until_ns)
                gone = len(revoked) - self._verifier.revoked_count
                self._keep(msgspec.structs.replace(self._state, revoked=revoked[gone:]))

    def _use(self, state: TokenState) -> None:
        verifier = TokenVerifier([PublicKey.parse(text) for text in state.token_keys])
        verifier.note_generation(state.generation, state.generation_since_ns)
        verifier.refuse_through(state.refused_through_ns)
        for each in state.revoked:
            verifier.revoke(each.subscription_id, each.reason, each.until_ns)
        self._state, self._verifier = state, verifier

    def _keep(self, state: TokenState) -> None:
        """Use the state at once and store it. A failed write is logged and otherwise ignored."""
        state, data = _fitting(state)
        self._use(state)
        if self._path is None:
            return
        try:
            make_directory(self._path.parent)
            replace_private(self._path, data)
        except (OSError, ConfigurationError) as error:
            log.error("token_state_not_kept", path=str(self._path), error=str(error))
