"""The messages between an application and its offload process: a call, then its answer, one at a time."""

from typing import Any, Literal, TypeAlias

import msgspec

from penstock.base.errors import (
    ConfigurationError,
    LimitError,
    LocalProtocolError,
    NotEntitledError,
    NotFoundError,
    PenstockError,
    ProducerGoneError,
    RecordUnavailableError,
    RefusedError,
    RemoteProtocolError,
    RevokedError,
    SharedMemoryError,
    UnreachableError,
)
from penstock.engine.client.consumer import ConsumerRequest

CALL_SIZE_MAX = 128 * 1024
ANSWER_SIZE_MAX = 1024 * 1024
RING_EVENTS = 5
"""Size of the ring in multiples of the largest call or answer; at most one is in it at a time."""

CALL_WAIT_S_MAX = 0.01
"""Maximum wait of a call: other threads of the application wait for its end."""

HELLO_SIZE_MAX = 128 * 1024
HELLO_FDS_MAX = 2

Kind: TypeAlias = Literal["events", "records"]


class Start(msgspec.Struct, frozen=True):
    """The first message, with the ring for calls."""

    kind: Kind
    request: ConsumerRequest
    queue_bytes: int


class Answer(msgspec.Struct, frozen=True, array_like=True):
    result: Any = None
    code: str = ""
    """Code of an error, with its details; then `result` is not set."""
    what: str = ""
    where: str = ""
    hint: str = ""
    peer_code: str = ""


class Call(msgspec.Struct, frozen=True, array_like=True):
    name: str
    arguments: list[Any]


start_decoder = msgspec.msgpack.Decoder(Start)
call_decoder = msgspec.msgpack.Decoder(Call)
answer_decoder = msgspec.msgpack.Decoder(Answer)
encoder = msgspec.msgpack.Encoder()

ERRORS: dict[str, type[PenstockError]] = {
    kind.code: kind
    for kind in (
        ConfigurationError,
        LimitError,
        LocalProtocolError,
        NotEntitledError,
        NotFoundError,
        ProducerGoneError,
        RecordUnavailableError,
        RemoteProtocolError,
        RevokedError,
        SharedMemoryError,
        UnreachableError,
    )
}


def answer_of(error: PenstockError) -> Answer:
    peer_code = error.peer_code if isinstance(error, RefusedError) else ""
    return Answer(None, error.code, error.what, error.where, error.hint, peer_code)


def error_of(answer: Answer) -> PenstockError:
    """Recreate the error of the offload process."""
    if answer.code == RefusedError.code:
        return RefusedError(answer.what, peer_code=answer.peer_code, hint=answer.hint)
    return ERRORS.get(answer.code, PenstockError)(answer.what, where=answer.where, hint=answer.hint)
