"""Defects of a capture: unreadable records, with the reason, and packets recorded as lost."""

from __future__ import annotations

import msgspec

from penstock.base.counters import Cause


class BadRecord(msgspec.Struct, frozen=True):
    """An unreadable record, or an unreadable message in a record; `code` is a Cause."""

    record: int
    captured_ns: int
    code: str
    reason: str
    excerpt: bytes


class Loss(msgspec.Struct, frozen=True):
    """Packets `first` to `last` of a stream that the capture records as lost."""

    record: int
    captured_ns: int
    publisher: int
    group: int
    epoch: int
    first: int
    last: int


REASONS = {
    Cause.FOREIGN: "the record is not a Penstock packet",
    Cause.VERSION: "the packet has an unknown version",
    Cause.TRUNCATED: "the packet is truncated",
    Cause.LENGTH: "the packet's lengths or contents are invalid",
    Cause.CHECKSUM: "the packet's checksum is wrong",
    Cause.KIND: "the packet has an unknown kind",
    Cause.UNEXPECTED: "a repair request, which a capture never contains",
    Cause.VALUE: "the ORIGIN extension of a message is invalid",
}
