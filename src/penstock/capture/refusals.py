"""What a capture lacks: records that cannot be read, with the reason, and packets that it says were lost."""

from __future__ import annotations

import msgspec

from penstock.base.counters import Cause


class BadRecord(msgspec.Struct, frozen=True):
    """A record, or a message of it, that cannot be read; `code` is a Cause."""

    record: int
    captured_ns: int
    code: str
    reason: str
    excerpt: bytes


class Loss(msgspec.Struct, frozen=True):
    """Packets `first` to `last` of a stream that were lost, as the capture itself says in this record."""

    record: int
    captured_ns: int
    publisher: int
    group: int
    epoch: int
    first: int
    last: int


REASONS = {
    Cause.FOREIGN: "these bytes are no packet",
    Cause.VERSION: "the packet has a version that is not known here",
    Cause.TRUNCATED: "the packet is cut off",
    Cause.LENGTH: "the packet's lengths or contents are impossible",
    Cause.CHECKSUM: "the packet's checksum is wrong",
    Cause.KIND: "the packet is of a kind that is not known here",
    Cause.UNEXPECTED: "a capture holds no repair requests",
    Cause.VALUE: "the ORIGIN of a message cannot be read",
}
