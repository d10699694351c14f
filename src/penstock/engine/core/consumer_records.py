"""Consumer distribution records: what the operator sees of each consumer."""

import msgspec

from penstock.engine.control import ClassName


class ClassRecord(msgspec.Struct, frozen=True):
    """What a consumer got in one class."""

    sent: int
    """Events, or records written into its regions."""

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
    """Its sinks: ring, buffer, notices, and regions with the names of their models and records."""

    subscriptions: int
    topics: int
    """Different topics and patterns that it subscribed to."""

    items: int
    """Items that it gets."""

    classes: dict[ClassName, ClassRecord]
    """Those that it is served."""

    overruns: int
    receipts: int
    waiting: int
    """Refreshes that wait to be written."""

    pending: int
    """Items of the adaptive class that are owed their value."""

    is_behind: bool
    """Whether it is served out of the history, because it was too slow."""
