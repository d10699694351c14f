"""Requests of a browser. All input is untrusted; an invalid request is refused with a reason."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from penstock.base.clock import NS_PER_SECOND
from penstock.base.errors import RequestError

HINT = "docs/reference/protocol/console.md describes the format"
AGO_S_MAX = 366 * 86_400

Id = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Topic = Annotated[str, msgspec.Meta(min_length=1, max_length=1_024)]
Class: TypeAlias = Literal["lossless", "conflating", "disconnect"]
"""The handling of a browser that does not keep up."""


class Request(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    id: Id


class Ago(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    ago_s: Annotated[float, msgspec.Meta(ge=0, le=AGO_S_MAX)]


class Subscribe(Request, frozen=True, kw_only=True, tag="subscribe"):
    topics: Annotated[tuple[Topic, ...], msgspec.Meta(min_length=1, max_length=1_024)]
    where: Annotated[str, msgspec.Meta(max_length=4_096)] | None = None
    since: (
        Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | Ago | Annotated[str, msgspec.Meta(max_length=64)] | None
    ) = None
    stream: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    cls: Class = msgspec.field(name="class", default="conflating")

    def begin(self) -> int | datetime | timedelta | Literal["live", "oldest"]:
        """The start of the subscription: after a sequence number, at a time, a time span ago, live or oldest."""
        match self.since:
            case None:
                return "live"
            case "live" | "oldest":
                return self.since
            case Ago(seconds):
                return timedelta(seconds=seconds)
            case str():
                return _time(self.since)
            case int():
                return self.since


class Unsubscribe(Request, frozen=True, kw_only=True, tag="unsubscribe"):
    pass


class Publish(Request, frozen=True, kw_only=True, tag="publish"):
    topic: Topic
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    fields: dict[str, Any]


class Models(Request, frozen=True, kw_only=True, tag="models"):
    id: Id = 1


class Ping(Request, frozen=True, kw_only=True, tag="ping"):
    id: Id = 1


AnyRequest: TypeAlias = Subscribe | Unsubscribe | Publish | Models | Ping

_DECODER: msgspec.json.Decoder[AnyRequest] = msgspec.json.Decoder(AnyRequest)


class Malformed(RequestError):
    """A well-formed request with invalid values."""

    def __init__(self, what: str, op: str, number: int) -> None:
        super().__init__(what, hint=HINT)
        self.op = op
        self.number = number


def parse(text: str | bytes) -> AnyRequest:
    """Parse a request. Raise Malformed if only this request is invalid, RequestError if it cannot be answered at
    all."""
    try:
        return _DECODER.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        try:
            document = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise RequestError("is not a JSON object", hint=HINT) from None
        op, number = document.get("op"), document.get("id")
        raise Malformed(
            f"is not a valid request: {error}",
            op[:32] if isinstance(op, str) else "",
            number if isinstance(number, int) and not isinstance(number, bool) and 0 < number < 2**31 else 0,
        ) from None


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(f"{text!r} is not a time", hint="write it as 2026-11-15T20:00:00Z") from None
    found = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    if found.year < 1971:
        raise RequestError(f"{text!r} is too long ago")
    return found


class Budget:
    """A rate limit with bursts of twice the requests per second. Times are passed in."""

    def __init__(self, per_s: float, now_ns: int) -> None:
        self._per_s = per_s
        self._left = self._most = max(1.0, 2 * per_s)
        self._at_ns = now_ns

    def take(self, now_ns: int) -> bool:
        """Return True if the rate allows another request."""
        gained = (now_ns - self._at_ns) / NS_PER_SECOND * self._per_s
        self._left, self._at_ns = min(self._most, self._left + gained), now_ns
        if self._left < 1:
            return False
        self._left -= 1
        return True
