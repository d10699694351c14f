"""Selects the messages of an application from packets that its filter module did not filter, or filtered for several
applications."""

from collections.abc import Sequence

import msgspec

from penstock.filter.client.wanted import WantedInterests
from penstock.filter.core.control import Registered
from penstock.middleware import Deliver, DeliverBatch, LossReceipt
from penstock.middleware.live.receiver import Received
from penstock.wire import MessageBatch, PacketFlag

REPAIR = int(PacketFlag.REPAIR)
MARKED, UNMARKED = 1, 2


class Selection:
    """Selects according to the delivery mode of one filter module."""

    def __init__(self, wanted: WantedInterests, registered: Registered, application_id: int) -> None:
        self._wanted = wanted
        self._application_id = application_id
        self._is_shared = registered.delivery in ("mask", "residual")
        self._bit = registered.bit if registered.delivery == "mask" else None

    @staticmethod
    def of(wanted: WantedInterests, registered: Registered, application_id: int) -> "Selection | None":
        """None if every received message matches: packets and repairs are made for this application alone."""
        if registered.delivery in ("unicast", "ring") and registered.repair == "filter":
            return None
        return Selection(wanted, registered, application_id)

    def among(self, received: Sequence[Received]) -> list[Received]:
        chosen: list[Received] = []
        for each in received:
            if isinstance(each, DeliverBatch):
                batch = self._picked(each.messages) if self._is_shared else each.messages
                if len(batch):
                    chosen.append(DeliverBatch(batch))
            elif isinstance(each, Deliver):
                chosen.append(self._judged(each) if self._is_shared or each.flags & REPAIR else each)
            elif not isinstance(each, LossReceipt) or self._wanted.wants_topic(each.topic):
                chosen.append(each)
        return chosen

    def _judged(self, deliver: Deliver) -> Deliver:
        """The Deliver stays even if none of its messages match, because it accounts for its packet."""
        wanted = [message for message in deliver.messages if self._wanted.wants(message, self._application_id)]
        return msgspec.structs.replace(deliver, messages=wanted)

    def _picked(self, batch: MessageBatch) -> MessageBatch:
        """Select by the mask; messages without a mask are matched here."""
        if self._bit is not None:
            marks = batch.marked_for(self._bit)
            if not (marks == UNMARKED).any():
                return batch.select(marks == MARKED)
        return self._wanted.chosen(batch, self._application_id)
