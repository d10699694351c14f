"""Consumer distribution records: the state of each consumer, for operators."""

import msgspec

from penstock.engine.control import ClassName


class ClassRecord(msgspec.Struct, frozen=True):
    """The deliveries of a consumer in one class."""

    sent: int
    """Events, or records written into its regions."""

    bytes: int
    conflated: int
    """Updates that were merged into a later event."""

    congested: int
    """Times that an event did not fit."""


class ConsumerDistributionRecord(msgspec.Struct, frozen=True):
    """The current state of one consumer."""

    consumer: int
    name: str
    destination: str
    memory: tuple[str, ...]
    """Its sinks: ring, buffer, notices, and regions with the names of their models and records."""

    subscriptions: int
    topics: int
    """Number of distinct topics and patterns in its subscriptions."""

    items: int
    """Number of its items."""

    classes: dict[ClassName, ClassRecord]
    """The classes that it is served."""

    overruns: int
    receipts: int
    waiting: int
    """Number of refreshes to be written."""

    pending: int
    """Items of the adaptive class with a pending value."""

    is_behind: bool
    """True if it is served from the history, because it was too slow."""
