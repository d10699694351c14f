"""Messages of the gateway to a browser: JSON documents with a kind."""

from typing import Any, Literal

import msgspec

from penstock.base.errors import PenstockError


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    pass


class Welcome(Reply, frozen=True, kw_only=True, tag="welcome"):
    client: str
    agent: str
    tree: str
    path: list[str]
    limits: dict[str, float]


class Subscribed(Reply, frozen=True, kw_only=True, tag="subscribed"):
    id: int
    topics: list[str]
    is_live: bool


class Unsubscribed(Reply, frozen=True, kw_only=True, tag="unsubscribed"):
    id: int


class Live(Reply, frozen=True, kw_only=True, tag="live"):
    """All retained messages have been delivered."""

    id: int


class MessageDocument(msgspec.Struct, frozen=True, kw_only=True):
    ids: list[int]
    topic: str
    stream: str
    seq: Any
    time_ms: float
    model: str
    fields: dict[str, Any]


class Messages(Reply, frozen=True, kw_only=True, tag="messages"):
    messages: list[MessageDocument]


class Published(Reply, frozen=True, kw_only=True, tag="published"):
    """The root has stored the message."""

    id: int


class Receipt(Reply, frozen=True, kw_only=True, tag="receipt"):
    """A subscription does not get some messages, or gets them later."""

    id: int
    receipt: str
    count: int | None = None
    stream: str = ""
    first: Any = None
    last: Any = None
    detail: str = ""


class Revoked(Reply, frozen=True, kw_only=True, tag="revoked"):
    ids: list[int]
    topics: list[str]
    reason: str


class Refused(Reply, frozen=True, kw_only=True, tag="refused"):
    op: str
    id: int
    code: str
    what: str
    where: str = ""
    hint: str = ""

    @staticmethod
    def of(error: PenstockError, op: str, number: int) -> "Refused":
        return Refused(op=op, id=number, code=error.code, what=error.what, where=error.where, hint=error.hint)


class State(Reply, frozen=True, kw_only=True, tag="state"):
    """The state of the link to the agent."""

    state: Literal["connected", "lost"]
    detail: str = ""
    agent: str = ""
    path: list[str] = []


class Info(Reply, frozen=True, kw_only=True, tag="info"):
    """A message of the infostream."""

    number: int = 0
    agent: str
    info: str
    topic: str
    sequence: int = 0
    time_ms: float
    detail: str
    fields: dict[str, Any]


class ModelsKnown(Reply, frozen=True, kw_only=True, tag="models"):
    models: list[dict[str, Any]]


class Pong(Reply, frozen=True, kw_only=True, tag="pong"):
    id: int


class Over(Reply, frozen=True, kw_only=True, tag="over"):
    code: str
    what: str
    close_code: int
