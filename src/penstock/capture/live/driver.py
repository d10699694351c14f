"""Write received packets into a journal."""

import time

import numpy

from penstock.base.counters import Cause
from penstock.base.log import logger
from penstock.journal import JournalWriter
from penstock.middleware import Collision, Deliver, DeliverBatch, LossReceipt, StreamEnded, StreamStarted
from penstock.middleware.live import MulticastReceiver, Received
from penstock.wire import encode_gone

log = logger("capture")

MESSAGE_CAUSES = (Cause.FRAGMENT, Cause.LENGTH)
"""Causes of receipts for a message that could not be reassembled; its packets are accounted for separately."""


class Capture:
    """Writes the output of `receiver` into `journal`: a record per packet, in the order of delivery.

    A record's time is the kernel's receive time of the packet; a packet that waited for its turn or for its repair has
    the time when its turn came. Times never decrease from record to record.
    """

    def __init__(self, receiver: MulticastReceiver, journal: JournalWriter) -> None:
        self._receiver = receiver
        self._journal = journal
        self._newest_ns = 0
        self.packets = 0
        self.messages = 0
        self.packets_lost = 0

    def take(self, timeout: float) -> None:
        """Wait for packets and append them; the journal syncs them later."""
        for each in self._receiver.receive(timeout):
            self._append(each)

    def _append(self, each: Received) -> None:
        match each:
            case DeliverBatch():
                self._append_batch(each)
            case Deliver():
                self._journal.append(each.data, self._now_ns())
                self.packets += 1
                self.messages += len(each.messages)
            case LossReceipt():
                self._append_loss(each)
            case StreamStarted(stream, epoch, first):
                log.info("stream_started", publisher=f"{stream.publisher_id:016x}", epoch=epoch, first=first)
            case StreamEnded(stream, epoch, next_sequence, cause):
                log.info(
                    "stream_ended",
                    publisher=f"{stream.publisher_id:016x}",
                    epoch=epoch,
                    next_sequence=next_sequence,
                    cause=str(cause),
                )
            case Collision(stream, _, owner, intruder):
                log.warning("id_collision", publisher=f"{stream.publisher_id:016x}", owner=owner, intruder=intruder)

    def _append_batch(self, each: DeliverBatch) -> None:
        batch = each.messages
        rows = batch.packets
        times_ns = numpy.maximum.accumulate(numpy.maximum(batch.packet_arrivals_ns(), self._newest_ns))
        self._journal.append_packed(batch.data, rows["offset"].copy(), rows["size"].copy(), times_ns)
        self._newest_ns = int(times_ns[-1])
        self.packets += len(rows)
        self.messages += len(batch)

    def _append_loss(self, receipt: LossReceipt) -> None:
        stream, first, last = receipt.stream, receipt.first, receipt.last
        log.warning(
            "packets_lost" if receipt.cause not in MESSAGE_CAUSES else "message_lost",
            publisher=f"{stream.publisher_id:016x}",
            first=first,
            last=last,
            cause=str(receipt.cause),
        )
        if receipt.cause not in MESSAGE_CAUSES:
            gone = encode_gone(stream.publisher_id, stream.group, receipt.epoch, [(first, last)])
            self._journal.append(gone, self._now_ns())
            self.packets_lost += last - first + 1

    def _now_ns(self) -> int:
        self._newest_ns = max(self._newest_ns, time.time_ns())
        return self._newest_ns
