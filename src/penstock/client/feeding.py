"""Input of a ticker plant or of a tree's root: the messages of feeds, each received in its own thread.

A failed feed is retried for ever, while the node continues to serve its current state. The node is informed of every
loss of a feed.
"""

import threading
from collections.abc import Sequence
from typing import Protocol, TypeAlias

from penstock.base.counters import Counters
from penstock.base.errors import PenstockError
from penstock.base.log import logger
from penstock.client.connecting import connect
from penstock.client.subscription import Subscription
from penstock.middleware import Deliver, DeliverBatch, Discontinuity, LossReceipt, SessionEvent
from penstock.middleware.core.reserved_topics import RESERVED_PREFIX
from penstock.middleware.core.source_stream import session_event_in
from penstock.middleware.live.receiver import MulticastReceiver
from penstock.net.udp import Channel
from penstock.security.core.access import AdminAccess
from penstock.wire import MessageBatch, PacketMessage

SLICE_SECONDS = 0.05
RETRY_SECONDS = 0.5
OWN_PREFIX = RESERVED_PREFIX.encode()

Content: TypeAlias = MessageBatch | list[PacketMessage]

log = logger("client.feed")


class Sink(Protocol):
    """Receives the messages of a feed, in the feed's thread."""

    def take(self, content: Content, feed: str = "") -> None: ...

    def lose(self) -> None:
        """Called when messages were lost."""

    def session(self, event: SessionEvent) -> None:
        """Called at begin or end of a session of a source stream, after all earlier messages."""


class Feed:
    """One source of messages, from start() to stop()."""

    is_in_touch = False
    """True while connected: messages are received when published."""

    def __init__(self, name: str, data: Sink, counters: Counters) -> None:
        self._data = data
        self._counters = counters
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"penstock-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def receive(self) -> None:
        """Receive until stopped, or until an error ends the feed."""
        raise NotImplementedError

    def _run(self) -> None:
        is_first = True
        while not self._is_stopped.is_set():
            try:
                if not is_first:
                    self.lost("feed_again")
                is_first = False
                self.receive()
            except PenstockError as error:
                log.warning("feed_lost", code=error.code, error=str(error))
            self.is_in_touch = False
            self._is_stopped.wait(RETRY_SECONDS)

    def lost(self, why: str) -> None:
        self._counters.add("upstream_lost", cause=why)
        self._data.lose()


class SubscribedFeed(Feed):
    """Topics subscribed at the administration server; with `image`, the current state first, then every update."""

    def __init__(
        self, access: AdminAccess, topics: Sequence[str], data: Sink, counters: Counters, *, image: bool = True
    ) -> None:
        super().__init__("subscription", data, counters)
        self._image = image
        self._access = access
        self._topics = tuple(topics)

    def receive(self) -> None:
        with (
            connect(self._access.url, credentials=self._access.credentials) as client,
            client.subscribe(*self._topics, image=self._image) as subscription,
        ):
            self.is_in_touch = True
            subscription.on_session = self._data.session
            self._pass_on(subscription)

    def _pass_on(self, subscription: Subscription) -> None:
        known = 0
        while not self._is_stopped.is_set():
            for batch in subscription.batches(SLICE_SECONDS):
                if subscription.loss_count > known:
                    fresh = subscription.losses[known - subscription.loss_count :]
                    known = subscription.loss_count
                    if any(not isinstance(each, Discontinuity) or each.is_loss for each in fresh):
                        self.lost("feed")
                self._data.take(batch.content, batch.feed)
                if self._is_stopped.is_set():
                    return


class ChannelFeed(Feed):
    """Multicast channels without an administration server, for trials."""

    def __init__(self, channels: Sequence[Channel], data: Sink, counters: Counters) -> None:
        super().__init__("channels", data, counters)
        self._channels = channels

    def receive(self) -> None:
        with MulticastReceiver(self._channels, counters=self._counters) as receiver:
            self.is_in_touch = True
            while not self._is_stopped.is_set():
                for each in receiver.receive(SLICE_SECONDS):
                    if isinstance(each, DeliverBatch | Deliver):
                        self._take(each.messages if isinstance(each, DeliverBatch) else list(each.messages))
                    elif isinstance(each, LossReceipt):
                        self.lost("feed")

    def _take(self, content: Content) -> None:
        own = without_own(content)
        if own is content:
            self._data.take(content)
            return
        run: list[PacketMessage] = []
        for message in content:
            if not message.topic.startswith(RESERVED_PREFIX):
                run.append(message)
            elif (event := session_event_in(message)) is not None:
                self._data.take(run)
                self._data.session(event)
                run = []
        self._data.take(run)


def without_own(content: Content) -> Content:
    """Drop the plant's own control messages to receivers, which are not data."""
    if not isinstance(content, MessageBatch):
        return [each for each in content if not each.topic.startswith(RESERVED_PREFIX)]
    if not content.has_topic_below(OWN_PREFIX):
        return content
    return [each for each in content if not each.topic.startswith(RESERVED_PREFIX)]
