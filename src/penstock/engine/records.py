"""Consumer distribution records: what the operator sees of each consumer."""

import msgspec

from penstock.engine.config import ClassName


class ClassRecord(msgspec.Struct, frozen=True):
    """What a consumer got in one class."""

    sent: int
    """Events."""

    bytes: int
    conflated: int
    """Updates that were merged into a later event."""

    congested: int
    """Times that there was no room for an event."""


class ConsumerDistributionRecord(msgspec.Struct, frozen=True):
    """One consumer, as it is now."""

    consumer: int
    name: str
    destination: str
    memory: tuple[str, ...]
    """Its sinks: ring, buffer."""

    subscriptions: int
    topics: int
    """Different topics and patterns that it subscribed to."""

    items: int
    """Items that it gets."""

    classes: dict[ClassName, ClassRecord]
    overruns: int
    receipts: int
    waiting: int
    """Refreshes that wait to be written."""

    is_behind: bool
    """Whether it is served out of the history, because it was too slow."""
