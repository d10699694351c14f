"""Settings and token state that the two routers of a pair exchange (REPL-6), in frames besides the messages: settings
that must be equal at both routers, and the keys and revocations for checking clients' tokens.

Each router sends the token state from its own administration server; the other router uses it when its own server does
not answer. So clients have the same rights after a switch. The token state is not secret, because its keys only verify
tokens.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, TypeAlias

import msgspec

from penstock.assured.node_config import RouterNodeConfig
from penstock.assured.wire._layout import KIND_BESIDE
from penstock.base.decoding import DECODE_ERRORS
from penstock.base.errors import RemoteProtocolError
from penstock.base.log import logger
from penstock.model import MessageModel
from penstock.net.core.framing import encode_frame
from penstock.net.secret import Secret
from penstock.security.core.brokering import Revoked
from penstock.security.core.keys import PublicKey
from penstock.security.live.gate import TokenState
from penstock.security.live.token_watch import TokenWatch

REVOKED_PER_FRAME = 4_096
TEXT_SIZE_MAX = 256
SECRET = "secret of clients"
HEAD = bytes([KIND_BESIDE, 0, 0, 0])

log = logger("assured.mirroring")

Text = Annotated[str, msgspec.Meta(max_length=TEXT_SIZE_MAX)]


class Configured(msgspec.Struct, tag="configured", frozen=True):
    """Settings that must be equal at both routers, by name; long ones as a hash."""

    values: Annotated[dict[Text, Text], msgspec.Meta(max_length=64)]


class TokensChecked(msgspec.Struct, tag="tokens_checked", frozen=True):
    """The state that checks tokens; several of these messages together have the revocations."""

    token_keys: Annotated[list[Annotated[str, msgspec.Meta(max_length=4_096)]], msgspec.Meta(max_length=64)]
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    generation_since_ns: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    revoked: Annotated[list[Revoked], msgspec.Meta(max_length=REVOKED_PER_FRAME)]
    refused_through_ns: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    """Tokens that expire by then are refused, because the sender could not keep all revocations."""


Beside: TypeAlias = Configured | TokensChecked


def peer_settings_of(
    config: RouterNodeConfig, models: Mapping[int, MessageModel], secret: Secret | None, tokens: TokenWatch | None
) -> "PeerSettings":
    """Build the settings of this router. Token state is accepted only from a peer that has proved its identity with the
    pair's secret, because the sender could otherwise admit any client. `secret` is the secret of clients."""
    assert config.pair is not None
    is_proved = bool(config.pair.link.secret_file)
    own = configured(config, models, secret if is_proved else None)
    if tokens is None or config.pair.mirror != "all":
        return PeerSettings(own, None)
    if not is_proved:
        log.warning("tokens_not_mirrored", hint="give pair.link a secret_file")
        return PeerSettings(own, None)

    def learn(state: TokenState) -> None:
        if tokens.learn(state):  # writing to the disk may take a while
            asyncio.get_running_loop().run_in_executor(None, tokens.use_learned)

    return PeerSettings(own, learn)


def configured(config: RouterNodeConfig, models: Mapping[int, MessageModel], secret: Secret | None) -> Configured:
    """The settings that must be equal at the other router."""
    values = {
        "replicate_by": config.replicate_by,
        "synchronous_topics": " ".join(config.synchronous_topics),
        "asynchronous_topics": " ".join(config.asynchronous_topics),
        "unmatched": config.unmatched,
        "message_bytes_max": str(config.message_bytes_max),
        "transaction_bytes_max": str(config.transaction_bytes_max),
        "retain_s": str(config.retain_s),
        "models": " ".join(f"{each.id}.{each.version}" for each in sorted(models.values(), key=lambda each: each.id)),
        "tokens": "asked for" if config.admin.url else "not asked for",
        "operators": " ".join(sorted(config.operators)),
        "TLS of clients": "no" if config.control.tls is None else "yes",
    }
    if secret is not None:
        values[SECRET] = secret.prove(b"penstock pair: the secret of clients").hex()
    return Configured({name: _short(text) for name, text in values.items()})


def _short(text: str) -> str:
    return text if len(text) <= TEXT_SIZE_MAX else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


class PeerSettings:
    """`learn` gets the token state of the other router; None: nothing is learned or sent."""

    def __init__(self, own: Configured, learn: Callable[[TokenState], None] | None) -> None:
        self.differences: tuple[str, ...] = ()
        """Settings that differed at the other router in its last message."""
        self._own = own
        self._learn = learn
        self._tokens: TokenState | None = None

    def opening(self) -> list[bytes]:
        """Frames for a new link."""
        return [_frame(self._own), *self._tokens_told()]

    def tokens(self, state: TokenState) -> list[bytes]:
        """Frames with the current state of the administration server."""
        self._tokens = state
        return self._tokens_told()

    def _tokens_told(self) -> list[bytes]:
        state = self._tokens
        if state is None or self._learn is None:
            return []
        starts = range(0, max(1, len(state.revoked)), REVOKED_PER_FRAME)
        parts = (state.revoked[start : start + REVOKED_PER_FRAME] for start in starts)
        told = (state.token_keys, state.generation, state.generation_since_ns)
        return [_frame(TokensChecked(*told, part, state.refused_through_ns)) for part in parts]

    def frame(self, data: bytes, other: str) -> None:
        """Handle a frame of the other router."""
        try:
            message = msgspec.msgpack.decode(data[len(HEAD) :], type=Beside)
        except DECODE_ERRORS as error:
            raise RemoteProtocolError(f"invalid settings of the other router: {error}") from None
        match message:
            case Configured(values):
                self._compare(values, other)
            case TokensChecked(keys):
                for key in keys:
                    PublicKey.parse(key)
                if self._learn is not None:
                    self._learn(TokenState(*msgspec.structs.astuple(message)))

    def _compare(self, values: Mapping[str, str], other: str) -> None:
        """Warn operators of differences, because clients could have fewer or other rights after a switch."""
        own = self._own.values
        self.differences = tuple(sorted(name for name, text in own.items() if values.get(name, text) != text))
        for name in self.differences:
            shown = {} if name == SECRET else {"here": own[name], "there": values[name]}
            log.warning("configured_differently", what=name, other=other, hint="use equal values", **shown)


def _frame(message: Beside) -> bytes:
    return encode_frame(HEAD + msgspec.msgpack.encode(message))
