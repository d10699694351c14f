"""Messages addressed to one client."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

from penstock.base.counters import Cause, Counters
from penstock.base.errors import ModelError, PacketError
from penstock.capture.core.message_reader import Readable
from penstock.capture.live.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.service import Protection
from penstock.filter.client import FilteredReceiver
from penstock.filter.client.discovery import find_filter
from penstock.middleware import Deliver, DeliverBatch
from penstock.middleware.core.direct import direct_topic, is_direct_to
from penstock.middleware.live.receiver import MulticastReceiver, SocketReceiver
from penstock.net.udp import Channel
from penstock.wire import Authenticator

SLICE_SECONDS = 0.05


class Inbox:
    """Receives messages to one client; opened by Client.inbox(). One thread reads. A filter module delivers only these
    messages; without one, the process receives all messages on the channels and drops the others here.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        address: int,
        config: ClientConfig,
        protection: Protection,
        models: Models,
        *,
        node: str,
        token: str,
        authenticator: Authenticator | None = None,
    ) -> None:
        """`token` is for a filter that requires one. With an `authenticator`, packets that do not come through a filter
        must be authentic.
        """
        self.address = address
        self.is_closed = False
        self.counters = Counters("client")
        self._models = models
        self._ready: deque[Readable] = deque()
        self.authenticator = authenticator
        self._receiver = self._receiver_for(channels, config, protection, node, token)

    def _receiver_for(
        self, channels: Sequence[Channel], config: ClientConfig, protection: Protection, node: str, token: str
    ) -> SocketReceiver:
        module = find_filter(config.filter)
        if module is None:
            return MulticastReceiver(
                channels, config=config.receiver, counters=self.counters, authenticator=self.authenticator
            )
        return FilteredReceiver(
            module,
            [direct_topic(self.address)],  # never published itself, but direct messages use its group
            channels=[str(channel) for channel in channels],
            delivery=config.filter_delivery,
            name=node,
            application_id=self.address,
            token=token,
            secret=protection.secret,
            tls=protection.tls,
            config=config.receiver,
            counters=self.counters,
            timeout=config.filter_wait_s,
            authenticator=self.authenticator,
        )

    def next(self, timeout: float | None = None) -> Readable | None:
        """Return the next message, or None if none arrived within `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            left = SLICE_SECONDS if deadline is None else deadline - time.monotonic()
            if left < 0:
                return None
            for each in self._receiver.receive(left):
                if isinstance(each, Deliver | DeliverBatch):
                    self._ready.extend(self._mine(each))
        return self._ready.popleft()

    def __iter__(self) -> Iterator[Readable]:
        while True:
            if (message := self.next(SLICE_SECONDS)) is not None:
                yield message

    def renew(self, token: str) -> None:
        """Use a newer token from the client."""
        if isinstance(self._receiver, FilteredReceiver):
            self._receiver.renew(token)

    def close(self) -> None:
        self.is_closed = True
        self._receiver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _mine(self, delivered: Deliver | DeliverBatch) -> Iterator[Readable]:
        for message in delivered.messages:
            try:
                if is_direct_to(message, self.address):
                    yield self._models.read(message)
            except (ModelError, PacketError):
                self.counters.add("messages_dropped", cause=Cause.MESSAGE)
