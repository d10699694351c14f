"""A browser's subscriptions at the administration server and its publisher, in a plant with a tree."""

import time
from collections.abc import Sequence

import msgspec

from penstock.base.clock import NS_PER_SECOND, random_bytes
from penstock.base.errors import NotFoundError, PenstockError, UnreachableError
from penstock.base.log import logger
from penstock.model import Message
from penstock.net.guard import Guard
from penstock.security.core.brokering import Brokered
from penstock.security.core.entitlement import Entitlement
from penstock.security.live.client import AdminClient
from penstock.tree.client.publication import StreamPublisher, publisher_config

CONFIRM_S = 5.0
RENEW_AFTER = 0.5
"""Share of a token's lifetime after which it is renewed."""

log = logger("console.tree")


class TreePlaces(msgspec.Struct, frozen=True):
    """The addresses for a browser's links."""

    tree: str
    leaves: tuple[str, ...]
    """host:port; a link uses any of them that answers."""

    roots: tuple[str, ...]
    """The root and its standby, for publishers."""

    guard: Guard = Guard()


class BrokeredGrant:
    """A grant of the administration server, renewed in time."""

    def __init__(self, admin: AdminClient, brokered: Brokered, topics: Sequence[str], send: Sequence[str]) -> None:
        self._admin = admin
        self._topics = topics
        self._send = send
        self.id = brokered.subscription_id
        self.take(brokered)

    def take(self, brokered: Brokered) -> None:
        self.token = brokered.token
        left_s = max(0.0, (brokered.expires_ns - time.time_ns()) / NS_PER_SECOND)
        self.renew_at = time.monotonic() + left_s * RENEW_AFTER

    def renewed(self) -> Brokered:
        """Return the renewed grant. Blocks."""
        try:
            return self._admin.renew(self.id)
        except NotFoundError:  # the server has lost or expired it
            return self._admin.subscribe(self._topics, send=self._send, subscription_id=self.id)

    def cancel(self) -> None:
        try:
            self._admin.cancel(self.id)
        except PenstockError as error:
            log.info("not_cancelled", error=str(error))  # the subscription expires by itself


class Publisher:
    """The publisher of one browser. All methods block: do not call them in the loop's thread."""

    def __init__(self, admin: AdminClient, places: TreePlaces) -> None:
        brokered = admin.subscribe((), send=(">",))
        self._entitlement = Entitlement(brokered.grants)
        self.grant = BrokeredGrant(admin, brokered, (), (">",))
        config, _ = publisher_config(places.roots, name=party(admin), is_named=False, tree=places.tree)
        try:
            self._publisher = StreamPublisher(config, guard=places.guard, token=brokered.token)
        except BaseException:
            self.grant.cancel()
            raise

    @property
    def is_over(self) -> bool:
        return self._publisher.is_over

    def publish(self, topic: str, record: Message) -> None:
        """Publish a message; returns when the root has stored it."""
        self._entitlement.check_send(topic)
        self._publisher.publish(topic, record)
        if not self._publisher.flush(CONFIRM_S):
            raise UnreachableError(
                "the root has not confirmed the message", hint="the message is sent again when the root is back"
            )

    def renew(self) -> None:
        try:
            brokered = self.grant.renewed()
        except PenstockError as error:
            log.info("not_renewed", error=str(error))
            self.grant.renew_at = time.monotonic() + 1.0
            return
        self.grant.take(brokered)
        self._entitlement = Entitlement(brokered.grants)
        self._publisher.renew(brokered.token)

    def close(self) -> None:
        self._publisher.close()
        self.grant.cancel()


def party(admin: AdminClient) -> str:
    """Return a unique party name, so that a revocation affects only one party."""
    return f"{admin.credentials.client[:48]}-{random_bytes(6).hex()}"
