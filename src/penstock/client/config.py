"""Limits and timeouts of a client."""

from typing import Annotated, Literal

import msgspec

from penstock.base.backoff import Backoff, BackoffPolicy
from penstock.base.clock import SystemRandomness
from penstock.base.config import Config
from penstock.filter.core.control import Wish
from penstock.middleware import MergerConfig, ReceiverConfig

Count = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Seconds = Annotated[float, msgspec.Meta(gt=0, le=3_600)]


class ClientConfig(Config, frozen=True):
    receiver: ReceiverConfig = ReceiverConfig()
    merger: MergerConfig = MergerConfig()

    filter: str = "auto"
    """Filter module for multicast: host:port of its control connection, "none", or "auto". With "auto", the client uses
    the filter in the environment variable PENSTOCK_FILTER, or else the one of this host, if any; when that filter is
    gone, the client joins the groups directly.
    """

    filter_delivery: Wish = "unicast"
    """Delivery of a filter's packets: "unicast" to a socket per subscription, "ring" in shared memory, or "shared" with
    others.
    """

    filter_wait_s: Seconds = 5.0
    """Maximum wait for a filter: until it has applied a new subscription, and, with "auto", after it is gone."""

    node: str = "auto"
    """Distribution node for records() and metered(): host:port, or "auto". With "auto", the client uses the node in the
    environment variable PENSTOCK_NODE, or else the one of this host.
    """

    node_wait_s: Seconds = 5.0
    """Maximum wait for a node at the start."""

    node_waits: Literal["block", "spin"] = "block"
    """How a consumer of a node waits: "block" sleeps until woken; "spin" polls, which is faster and uses a whole
    core.
    """

    offload: bool = False
    """Whether consumers of a node run in separate processes."""

    image_attempts_max: Count = 20
    """Maximum number of image requests until an image fits the live stream."""

    image_messages_max: Count = 4_000_000
    """Maximum number of messages in an image."""

    early_messages_max: Count = 1_000_000
    """Maximum number of live messages kept until the image arrives, or until their key arrives."""

    key_wait_s: Seconds = 10.0
    """Time that a sealed message waits for its key; then the message is reported as unreadable."""

    reconnect_s: Seconds = 0.05
    """Pause before a reconnection attempt to an adapter or the administration server. The pause doubles up to
    reconnect_max_s, or up to half a second if nothing listens; half of each pause is random jitter."""

    reconnect_max_s: Seconds = 2.0

    inbox_messages_max: Count = 256
    """Control messages read ahead per adapter; an adapter disconnects a client that stops reading for too long."""

    losses_max: Count = 10_000
    """Receipts kept in Subscription.losses; the oldest are dropped, the statistics count all."""

    unconfirmed_max: Count = 65_536
    """Maximum number of contributed messages without the confirmation of every adapter."""

    def new_backoff(self) -> Backoff:
        """Return the back-off for a link that reconnects after every loss."""
        policy = BackoffPolicy(base_ms=round(1_000 * self.reconnect_s), max_ms=round(1_000 * self.reconnect_max_s))
        return Backoff(SystemRandomness(), policy)
