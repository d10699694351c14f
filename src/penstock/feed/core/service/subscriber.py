"""One subscriber of an adapter's stream service, as the service's core sees it."""

from typing import Any

import msgspec
from numpy.typing import NDArray

from penstock.feed.core.service.accounts import SubscriberAccount
from penstock.feed.core.service.published import StreamPacker
from penstock.feed.core.service.selection import Selector
from penstock.middleware.unicast import OpenStream
from penstock.security import Entitlement, Token


class PendingRows(msgspec.Struct, frozen=True):
    """Messages chosen while the image is awaited."""

    data: NDArray[Any]
    packet_sequences: NDArray[Any]
    rows: NDArray[Any]


class Subscriber:
    """From the opening of its stream to the end."""

    def __init__(
        self, number: int, opening: OpenStream, token: Token, granted_s: int, delay_s: int, packer: StreamPacker
    ) -> None:
        self.number = number
        self.topics = opening.topics
        self.is_live = opening.live
        self.token = token
        self.granted_s = granted_s  # the delay of the grants that are served
        self.delay_s = delay_s  # how old everything is; not less than that
        self.packer = packer
        self.queued_size = 0
        self.contributes: set[str] = set()  # to these streams, and nobody else does meanwhile
        self.pending: list[PendingRows] | None = [] if opening.image else None
        self.first_packet = 0  # of those published: what came before is in its image
        self.selector = Selector()  # of its own: for the image, and for a delayed stream
        self.entitlement = Entitlement(token.grants)
        self.account: SubscriberAccount

    def patterns(self) -> list[str]:
        """Of what it may receive here: granted with this delay, and not with a smaller one, because then it comes by
        another stream. Negative grants hold whatever their delay."""
        grants = [grant for grant in self.token.grants if grant.action == "receive"]
        negative = [each.pattern for each in grants if each.pattern.startswith("!")]
        positive = [each for each in grants if not each.pattern.startswith("!")]
        sooner = ["!" + each.pattern for each in positive if each.delay_s < self.granted_s]
        return [each.pattern for each in positive if each.delay_s == self.granted_s] + sooner + negative
