"""The exceeded limit of a full endpoint, in words for its publishers."""

from penstock.assured.wire._layout import LIMIT_MESSAGES
from penstock.base.words import counted


def why_full(name: str, messages_max: int, bytes_max: int, limit: int) -> str:
    if limit == LIMIT_MESSAGES:
        return f"endpoint {name!r} is full: {counted(messages_max, 'message')} (messages_max)"
    return f"endpoint {name!r} is full: {counted(bytes_max, 'byte')} (bytes_max)"
