"""A feed by way of a filter module: the same streams, of which only what is wanted arrives."""

from collections.abc import Callable, Sequence

from penstock.base.counters import Counters
from penstock.base.errors import RefusedError
from penstock.client.config import ClientConfig
from penstock.client.joining import Begun
from penstock.client.reading import Models
from penstock.client.service import Protection, place
from penstock.filter.application import FilteredReceiver
from penstock.middleware.own import DISCONTINUITY_TOPIC, MODEL_TOPIC
from penstock.net.loop_thread import LoopThread
from penstock.net.udp import Address, Channel
from penstock.security.brokering import BrokeredStream, StreamAddress

OWN_TOPICS = (DISCONTINUITY_TOPIC, MODEL_TOPIC)
"""What every subscriber of a feed gets."""


class FilteredFeed:
    """One registration at the filter. `receiver` is a source of a MergingReceiver."""

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
    ) -> None:
        self._where = where or ""
        self._topics = list(topics)
        self._channels = channels_of(stream.addresses)
        self._models = models
        self._stream = stream
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
            timeout=config.filter_wait_s,
        )
        try:
            self.receiver.want(*topics, where=self._where, channels=self._channels)
        except BaseException:
            self.receiver.close()
            raise

    def follow(self, stream: BrokeredStream, topics: Sequence[str]) -> None:
        """The topics and adapters as they are now."""
        self._stream = stream
        channels = channels_of(stream.addresses) or self._channels
        if channels != self._channels:
            self.receiver.want(*OWN_TOPICS, channels=channels)
        if (channels, list(topics)) != (self._channels, self._topics):
            self.receiver.change(topics, self._topics, where=self._where, channels=channels)
        self._channels, self._topics = channels, list(topics)

    def begun(self, addresses: Sequence[StreamAddress]) -> dict[StreamAddress, Begun]:
        """The adapters whose streams come from the filter, as far as receive() has come: it brings everything of them
        that is wanted from then on."""
        if not self.receiver.is_attached:
            return {}
        number, told = self.receiver.attachment, self.receiver.streams_told()
        found = {}
        for each in addresses:
            group = Channel(group=each.group, port=each.port).group_id
            if (each.publisher_id, group) in told:
                found[place(each)] = Begun(number, each.publisher_id, group)
        return found

    def _documents(self) -> list[str]:
        """Of the models that a condition may speak of."""
        if not self._where:
            return []
        known = [self._models.get(each.id, each.version) for each in self._stream.models]
        return [model.text for model in known if model is not None and model.text]


def channels_of(addresses: Sequence[StreamAddress]) -> list[str]:
    return sorted({f"{each.group}:{each.port}" for each in addresses})
