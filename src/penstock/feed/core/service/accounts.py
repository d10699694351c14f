"""Accounts of the stream service's subscribers: per open stream, and in total per client."""

import msgspec

from penstock.base.counters import Counters
from penstock.base.metrics import Metrics
from penstock.security import Token

CLIENTS_MAX = 4_096
"""Maximum number of clients with their own counters; further clients are counted together, without a name."""


class StreamAccount(msgspec.Struct, frozen=True):
    """One open stream, for status pages."""

    client: str
    subscription_id: str
    delay_s: int
    opened_ns: int
    messages: int
    packets: int
    bytes: int
    contributed: int


class SubscriberAccount:
    """Counts for one open stream, and for its client."""

    def __init__(self, token: Token, delay_s: int, opened_ns: int, counters: Counters) -> None:
        self.client = token.subject
        self.subscription_id = token.subscription_id
        self._delay_s = delay_s
        self._opened_ns = opened_ns
        self._counters = counters
        self.messages = 0
        self.packets = 0
        self.bytes = 0
        self.contributed = 0

    def note_sent(self, messages: int, packets: list[bytes]) -> None:
        size = sum(map(len, packets))
        self.messages += messages
        self.packets += len(packets)
        self.bytes += size
        self._counters.add("messages_streamed", messages)
        self._counters.add("packets_streamed", len(packets))
        self._counters.add("bytes_streamed", size)

    def note_contributed(self, messages: int) -> None:
        self.contributed += messages
        self._counters.add("messages_contributed", messages)

    def shown(self) -> StreamAccount:
        return StreamAccount(
            self.client,
            self.subscription_id,
            self._delay_s,
            self._opened_ns,
            self.messages,
            self.packets,
            self.bytes,
            self.contributed,
        )


class Accounts:
    """Open streams, and counters per client, which metrics show."""

    def __init__(self) -> None:
        self._open: list[SubscriberAccount] = []
        self._clients: dict[str, Counters] = {}
        self._metrics: Metrics | None = None

    def show_in(self, metrics: Metrics) -> None:
        """Show the counters of present and future clients in these metrics."""
        self._metrics = metrics
        for counters in self._clients.values():
            metrics.register(counters)

    def open(self, token: Token, delay_s: int, now_ns: int) -> SubscriberAccount:
        counters = self.of_client(token.subject)
        counters.add("subscriptions_opened")
        account = SubscriberAccount(token, delay_s, now_ns, counters)
        self._open.append(account)
        return account

    def close(self, account: SubscriberAccount) -> None:
        self._open.remove(account)

    def open_streams(self) -> list[StreamAccount]:
        """May be called from any thread."""
        return [account.shown() for account in self._open.copy()]

    def of_client(self, client: str) -> Counters:
        name = client if client in self._clients or len(self._clients) < CLIENTS_MAX else ""
        if name not in self._clients:
            self._clients[name] = Counters("feed.service", client=name)
            if self._metrics is not None:
                self._metrics.register(self._clients[name])
        return self._clients[name]
