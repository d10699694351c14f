"""The bounds and patience of a client."""

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
    """Whether multicast comes by way of a filter module: host:port of its control connection, "none", or "auto": the
    one that PENSTOCK_FILTER names in the environment, or else this host's if it has one; when that one is gone, the
    groups are listened to directly."""

    filter_delivery: Wish = "unicast"
    """How its packets come: to a socket of each subscription, by "ring" in shared memory, "shared" with others."""

    filter_wait_s: Seconds = 5.0
    """How long a filter is waited for: until it holds to what a new subscription wants, and, with "auto", when it is
    gone."""

    node: str = "auto"
    """The distribution node of records() and metered(): host:port, or "auto": the one that PENSTOCK_NODE names in the
    environment, or else this host's."""

    node_wait_s: Seconds = 5.0
    """How long a node is waited for at first."""

    node_waits: Literal["block", "spin"] = "block"
    """What a consumer of a node does while nothing comes: sleep until it is woken, or look again and again, which is
    quicker and costs a core."""

    offload: bool = False
    """Whether consumers of a node have processes of their own that do their work."""

    image_attempts_max: Count = 20
    """How often an image is asked for until one fits the live stream."""

    image_messages_max: Count = 4_000_000
    """Messages of one image."""

    early_messages_max: Count = 1_000_000
    """Live messages kept until the image is there, and messages kept until the key is there that opens them."""

    key_wait_s: Seconds = 10.0
    """How long a sealed message waits for its key; then it is reported as unreadable."""

    reconnect_s: Seconds = 0.05
    """Pause before a reconnection attempt to an adapter or the administration server. The pause doubles up to
    reconnect_max_s, or up to half a second if nothing listens; half of each pause is random jitter."""

    reconnect_max_s: Seconds = 2.0

    inbox_messages_max: Count = 256
    """Control messages of adapters read ahead; an adapter that has to wait longer than it likes cuts us off."""

    losses_max: Count = 10_000
    """Receipts kept for Subscription.losses; the oldest are dropped, statistics count them all."""

    unconfirmed_max: Count = 65_536
    """Contributed messages that not every adapter has confirmed."""

    def new_backoff(self) -> Backoff:
        """The back-off of one link that reconnects after every loss."""
        policy = BackoffPolicy(base_ms=round(1_000 * self.reconnect_s), max_ms=round(1_000 * self.reconnect_max_s))
        return Backoff(SystemRandomness(), policy)
