"""A publisher on a multicast stream of its own, which the administration server brokers to subscribers."""

from types import TracebackType
from typing import Self

import numpy
from typing_extensions import Buffer

from penstock.base.errors import LocalProtocolError, PenstockError, RemoteProtocolError
from penstock.client.holding import Holding, Manager
from penstock.middleware import PublisherConfig
from penstock.middleware.core.batch import Packable
from penstock.middleware.live import MulticastPublisher
from penstock.model import Message
from penstock.net.udp import Channel
from penstock.security import Entitlement
from penstock.security.core.authentication import is_older, scope_of
from penstock.security.core.brokering import Authentication, Brokered, Publication
from penstock.wire import LeaseFlag

TOPICS_REMEMBERED_MAX = 65_536


class BrokeredPublisher(Holding):
    """Publishes on the topics of its grants. Thread-safe.

    Packets go straight to the subscribers. Only those with the topic among their grants receive them: the server gives
    nobody else the keys, and a subscription drops messages on topics that the publisher may not send.
    """

    is_sending = True

    def __init__(
        self,
        brokered: Brokered,
        manager: Manager,
        topics: tuple[str, ...],
        *,
        interface: str,
        config: PublisherConfig | None,
        lease: LeaseFlag,
    ) -> None:
        self.topics = topics
        self.hold(brokered, manager)
        publication = _publication(brokered)
        self._place = _place(publication)
        self._authentication: Authentication | None = None
        self._error: PenstockError | None = None
        self._is_closed = False
        self._allowed: set[str] = set()  # topics that were checked against the grants
        self._entitlement = Entitlement(brokered.grants)
        self._publisher = MulticastPublisher(
            Channel(group=publication.group, port=publication.port, interface=interface),
            publisher_id=publication.publisher_id,
            epoch=publication.epoch,
            config=config,
            keys=(),
            lease=lease,
        )
        self._publish = self._publisher.publish
        self.authenticated(publication.authentication)

    def publish(self, topic: str, payload: Buffer | Message, *, model_id: int = 0, model_version: int = 0) -> None:
        """Send one message. A Message brings its model's id and version."""
        if topic not in self._allowed:
            self._check(topic)
        self._publish(topic, payload, model_id=model_id, model_version=model_version)

    def publish_batch(self, batch: Packable) -> None:
        """Send many messages, packed into as few packets as they fit."""
        rows, data = batch.rows, memoryview(batch.topic_data)  # type: ignore[arg-type]  # an array is a buffer
        places = rows["topic_offset"].astype(numpy.uint64) << numpy.uint64(16) | rows["topic_size"]
        for place in numpy.unique(places).tolist():
            offset, size = place >> 16, place & 0xFFFF
            topic = str(data[offset : offset + size], "utf-8")
            if topic not in self._allowed:
                self._check(topic)
        self._publisher.publish_batch(batch)

    def close(self) -> None:
        """Send nothing more; waits for the configured time to answer repair requests."""
        self._is_closed = True
        self._allowed = set()
        self._publisher.close(linger=self._error is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Close the publisher, here and at the administration server, which lets subscribers read what was sent."""
        is_over = self.is_over
        self.close()
        if not is_over:
            self._manager.cancel(self)

    # For the client's own thread

    @property
    def is_over(self) -> bool:
        return self._is_closed or self._error is not None

    def fail(self, error: PenstockError) -> None:
        """End the publisher: the next message is refused with this error."""
        if self._error is None:
            self._error = error
        self._allowed = set()
        self._publisher.authenticate((), 0)

    def renewed(self, brokered: Brokered) -> None:
        self._brokered = brokered
        publication = _publication(brokered)
        if _place(publication) != self._place:
            self.fail(
                LocalProtocolError(
                    "the administration server was reset and gave the publisher another stream",
                    hint="open a new publisher",
                )
            )
            return
        self._entitlement = Entitlement(brokered.grants)
        self._allowed = set()
        self.authenticated(publication.authentication)

    def authenticated(self, told: Authentication) -> None:
        """Use the current keys of the stream."""
        if told.scope != _publication(self._brokered).authentication.scope or is_older(told, self._authentication):
            return
        self._authentication = told
        if self._error is None:
            scope = scope_of(told)
            self._publisher.authenticate(scope.keys, scope.active_key_id)

    def _check(self, topic: str) -> None:
        """Check a topic for the first time since the grants changed."""
        allowed, entitlement = self._allowed, self._entitlement
        self._check_expiry()
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise LocalProtocolError("the publisher is closed")
        entitlement.check_send(topic)
        if len(allowed) >= TOPICS_REMEMBERED_MAX:
            allowed.clear()
        allowed.add(topic)


def _publication(brokered: Brokered) -> Publication:
    if brokered.publication is None:
        raise RemoteProtocolError(
            "the administration server gave the publisher no stream", hint="the server may be of an earlier version"
        )
    return brokered.publication


def _place(publication: Publication) -> tuple[int, str, int]:
    return publication.publisher_id, publication.group, publication.port
