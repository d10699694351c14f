"""The promises of every message router about deliveries; the checkers of one router and of a pair extend them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from penstock.assured.wire._layout import DELIVERY_REDELIVERED
from penstock.sim.checker import Checker

Key = tuple[int, int]
"""A message: its publisher and its number."""


class DeliveryChecker(Checker):
    """Every endpoint delivers the messages of its topics once, or flagged as redelivered, and all acknowledged
    messages. `routes` returns the endpoints of a topic.
    """

    def __init__(self, routes: Mapping[bytes, Collection[str]]) -> None:
        self.deliveries = 0
        self.redeliveries = 0
        self._routes = routes
        self._delivered: dict[str, set[Key]] = defaultdict(set)

    def deliver_once_or_flagged(self, endpoint: str, key: Key, topic: bytes, flags: int) -> None:
        """An endpoint delivers a message."""
        self.require(
            endpoint in self._routes[topic], f"{endpoint} delivered {key} on {topic!r}, which it does not want"
        )
        self.deliveries += 1
        if key in self._delivered[endpoint]:
            self.redeliveries += 1
            self.require(bool(flags & DELIVERY_REDELIVERED), f"{endpoint} delivered {key} again and did not flag it")
        self._delivered[endpoint].add(key)

    def require_absent(self, keys: Iterable[Key], why: str) -> None:
        """Check that no endpoint has delivered any of these messages, because of `why`."""
        for key in keys:
            endpoints = [endpoint for endpoint, delivered in self._delivered.items() if key in delivered]
            self.require(not endpoints, f"{endpoints} delivered {key}, which {why}")

    def require_delivered(
        self, messages: Iterable[tuple[Key, bytes]], why: str, *, except_by: Collection[str] = ()
    ) -> None:
        """Check that every endpoint of the message's topic has delivered it, except those in `except_by`."""
        missing = [
            (key, endpoint)
            for key, topic in messages
            for endpoint in self._routes[topic]
            if endpoint not in except_by and not self.has_delivered(endpoint, key)
        ]
        self.require(
            not missing, f"{len(missing)} deliveries are missing of messages that {why}: {sorted(missing)[:5]}"
        )

    def has_delivered(self, endpoint: str, key: Key) -> bool:
        return key in self._delivered.get(endpoint, ())
