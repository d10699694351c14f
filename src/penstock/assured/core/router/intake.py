"""Acceptance of published messages: matching with endpoints, check of the client's rights, storing."""

import numpy
from numpy.typing import NDArray

from penstock.assured.config import RouterConfig
from penstock.assured.core.router._intake import PublishBatch, accept
from penstock.assured.core.router._records import TREATMENT_ASYNC, TREATMENT_SYNC
from penstock.assured.core.router._tables import Tables
from penstock.assured.core.router.endpoints import Endpoints, counts_of
from penstock.assured.core.router.links import Link
from penstock.assured.wire._layout import MESSAGE_WANTS_ASYNC, MESSAGE_WANTS_SYNC, PUBLISHED_HEAD_SIZE
from penstock.assured.wire.fullness import why_full
from penstock.topics.table import InterestTable

FLAGS_BEFORE_TOPIC = PUBLISHED_HEAD_SIZE - 11
"""Of a message in a PUBLISH frame."""


class Intake:
    def __init__(self, config: RouterConfig, tables: Tables, endpoints: Endpoints, seed: bytes) -> None:
        self._tables = tables
        self._endpoints = endpoints
        self._replicate_by = config.replicate_by
        self._matcher = endpoints.matcher
        self._treated: InterestTable | None = None
        if config.replicate_by == "topic":
            self._treated = InterestTable(seed=seed)
            for treatment, topics in (
                (TREATMENT_SYNC, config.synchronous_topics),
                (TREATMENT_ASYNC, config.asynchronous_topics),
            ):
                for topic in topics:
                    self._treated.add(topic, treatment)

    def accept(self, link: Link, batch: PublishBatch) -> int:
        """Accept a batch. In a transaction, return the obstacle, or 0."""
        offsets, subscribers = self._matcher.match_messages(batch)
        return accept(
            self._tables,
            batch,
            offsets,
            subscribers,
            self._matcher.owners,
            link.entitled(batch),
            self._treatments(batch),
        )

    def is_plain(self, link: Link) -> bool:
        """True if only topics decide on the endpoints of this client's messages, and it may publish all of them."""
        return self._treated is None and self._matcher.is_plain and link.is_free_to_send

    def why_full(self) -> str:
        """The limit of the full endpoint that refused the last message."""
        endpoint = self._endpoints.by_number(self._tables.full_endpoint)
        assert endpoint is not None  # it was asked just now
        config = endpoint.config
        return why_full(config.name, config.messages_max, config.bytes_max, self._tables.full_limit)

    def is_replicated(self, batch: PublishBatch) -> bool:
        """True if some of these messages will be replicated, as far as that is known before they are accepted."""
        match self._replicate_by:
            case "publisher":
                flags = numpy.frombuffer(batch.data, numpy.uint8)[batch.topic_offsets - FLAGS_BEFORE_TOPIC]
                return bool((flags & (MESSAGE_WANTS_SYNC | MESSAGE_WANTS_ASYNC)).any())
            case "topic":
                treatments = self._treatments(batch)
                return treatments is not None and bool(treatments.any())
            case _:
                _, subscribers = self._matcher.match_messages(batch)
                found = map(self._endpoints.by_number, {*self._matcher.owners[subscribers].tolist()})
                return any(each is not None and each.config.replication != "none" for each in found)

    def _treatments(self, batch: PublishBatch) -> NDArray[numpy.uint8] | None:
        """The treatment of each message by topic (REPL-2)."""
        if self._treated is None:
            return None
        offsets, found = self._treated.match_batch(memoryview(batch.data), batch.topic_offsets, batch.topic_sizes)
        messages = numpy.repeat(numpy.arange(len(batch)), counts_of(offsets))
        treatments = numpy.zeros(len(batch), numpy.uint8)
        numpy.maximum.at(treatments, messages, found.astype(numpy.uint8))
        return treatments
