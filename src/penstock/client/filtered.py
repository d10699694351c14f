"""A feed through a filter module: the same streams, reduced to the wanted messages."""

from collections.abc import Callable, Sequence

from penstock.base.counters import Counters
from penstock.base.errors import RefusedError
from penstock.capture.live.reading import Models
from penstock.client.config import ClientConfig
from penstock.client.joining import Begun
from penstock.client.service import Protection, place
from penstock.filter.client import FilteredReceiver
from penstock.middleware import DeliverBatch, StreamKey, StreamStarted
from penstock.middleware.core.reserved_topics import DISCONTINUITY_TOPIC, MODEL_TOPIC
from penstock.middleware.live.receiver import Received
from penstock.net.live.loop_thread import LoopThread
from penstock.net.udp import Address, Channel
from penstock.security.core.brokering import BrokeredStream, StreamAddress
from penstock.wire import Authenticator

OWN_TOPICS = (DISCONTINUITY_TOPIC, MODEL_TOPIC)
"""Topics that every subscriber of a feed receives."""

STREAMS_MAX = 65_536


class FilteredFeed:
    """One registration at the filter; a source of a MergingReceiver."""

    def __init__(
        self,
        module: Address,
        thread: LoopThread,
        protection: Protection,
        config: ClientConfig,
        counters: Counters,
        models: Models,
        stream: BrokeredStream,
        *,
        topics: Sequence[str],
        where: str | None,
        node: str,
        token: str,
        on_refused: Callable[[RefusedError], None],
        authenticator: Authenticator,
    ) -> None:
        self._where = where or ""
        self._topics = list(topics)
        self._channels = channels_of(stream.addresses)
        self._models = models
        self._stream = stream
        self._started: set[StreamKey] = set()
        self._awaited: dict[StreamKey, int] = {}  # streams assumed to have begun, by the connection to their adapter
        self.receiver = FilteredReceiver(
            module,
            OWN_TOPICS,
            channels=self._channels,
            delivery=config.filter_delivery,
            name=node,
            token=token,
            models=models.get,
            documents=self._documents,
            secret=protection.secret,
            tls=protection.tls,
            config=config.receiver,
            counters=counters,
            thread=thread,
            on_refused=on_refused,
            authenticator=authenticator,
            timeout=config.filter_wait_s,
        )
        try:
            self.receiver.want(*topics, where=self._where, channels=self._channels)
        except BaseException:
            self.receiver.close()
            raise

    def follow(self, stream: BrokeredStream, topics: Sequence[str]) -> None:
        """Set the current topics and adapters."""
        self._stream = stream
        channels = channels_of(stream.addresses) or self._channels
        if channels != self._channels:
            self.receiver.want(*OWN_TOPICS, channels=channels)
        if (channels, list(topics)) != (self._channels, self._topics):
            self.receiver.change(topics, self._topics, where=self._where, channels=channels)
        self._channels, self._topics = channels, list(topics)

    def begun(self, addresses: Sequence[StreamAddress]) -> dict[StreamAddress, Begun]:
        """Return the adapters' begun streams. Once the filter applies the interests, it delivers each stream
        completely, even one without any message so far.
        """
        if not self.receiver.is_attached:
            return {}
        number = self.receiver.attachment
        found = {}
        for each in addresses:
            key = StreamKey(each.publisher_id, Channel(group=each.group, port=each.port).group_id)
            found[place(each)] = Begun(number, key.publisher_id, key.group)
            if key not in self._started:
                self._awaited[key] = number
        return found

    # For the MergingReceiver

    def receive(self, timeout: float | None = None) -> list[Received]:
        """Like FilteredReceiver.receive(), but without the start event of a stream that was assumed to have begun,
        because no message was missed.
        """
        received = self.receiver.receive(timeout)
        if len(received) == 1 and isinstance(received[0], DeliverBatch):
            return received
        return [each for each in received if not (isinstance(each, StreamStarted) and self._was_begun(each.stream))]

    def descriptors(self) -> list[int] | None:
        return self.receiver.descriptors()

    def next_due_ns(self) -> int | None:
        return self.receiver.next_due_ns()

    def close(self) -> None:
        self.receiver.close()

    def _was_begun(self, key: StreamKey) -> bool:
        if len(self._started) < STREAMS_MAX:
            self._started.add(key)
        return self._awaited.pop(key, -1) == self.receiver.attachment

    def _documents(self) -> list[str]:
        """Return the documents of the models that a condition may refer to."""
        if not self._where:
            return []
        known = [self._models.get(each.id, each.version) for each in self._stream.models]
        return [model.text for model in known if model is not None and model.text]


def channels_of(addresses: Sequence[StreamAddress]) -> list[str]:
    return sorted({f"{each.group}:{each.port}" for each in addresses})
