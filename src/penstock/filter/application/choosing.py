"""What an application takes of packets that its filter module did not judge, or judged for others as well."""

from collections.abc import Sequence

import msgspec

from penstock.filter.application.wishes import Wishes
from penstock.filter.control import Registered
from penstock.middleware import Deliver, DeliverBatch, LossReceipt
from penstock.middleware.live.receiver import Received
from penstock.wire import MessageBatch, PacketFlag

REPAIR = int(PacketFlag.REPAIR)
MARKED, UNMARKED = 1, 2


class Choice:
    """For the way in which one filter delivers."""

    def __init__(self, wishes: Wishes, registered: Registered, application_id: int) -> None:
        self._wishes = wishes
        self._application_id = application_id
        self._is_shared = registered.delivery in ("mask", "residual")
        self._bit = registered.bit if registered.delivery == "mask" else None

    @staticmethod
    def of(wishes: Wishes, registered: Registered, application_id: int) -> "Choice | None":
        """None if everything that comes is wanted: packets of one's own, and repairs made for oneself."""
        if registered.delivery in ("unicast", "ring") and registered.repair == "filter":
            return None
        return Choice(wishes, registered, application_id)

    def among(self, received: Sequence[Received]) -> list[Received]:
        chosen: list[Received] = []
        for each in received:
            if isinstance(each, DeliverBatch):
                batch = self._picked(each.messages) if self._is_shared else each.messages
                if len(batch):
                    chosen.append(DeliverBatch(batch))
            elif isinstance(each, Deliver):
                chosen.append(self._judged(each) if self._is_shared or each.flags & REPAIR else each)
            elif not isinstance(each, LossReceipt) or self._wishes.wants_topic(each.topic):
                chosen.append(each)
        return chosen

    def _judged(self, deliver: Deliver) -> Deliver:
        """It stays even if none of its messages do: it accounts for its packet."""
        wanted = [message for message in deliver.messages if self._wishes.wants(message, self._application_id)]
        return msgspec.structs.replace(deliver, messages=wanted)

    def _picked(self, batch: MessageBatch) -> MessageBatch:
        """By the mask; what has none is for everybody to judge."""
        if self._bit is not None:
            marks = batch.marked_for(self._bit)
            if not (marks == UNMARKED).any():
                return batch.select(marks == MARKED)
        return self._wishes.chosen(batch, self._application_id)
