"""Capture: store a receiver's packets in a journal, and read them back as they were delivered.

    Capture       from a MulticastReceiver into a JournalWriter
    replay        a journal's records as the receiver's Delivers and LossReceipts
    PacketRows    a journal's records as MessageRows: arrays over the bytes, for processing many messages at once

docs/reference/protocol/capture.md defines the content of a record.
"""

from penstock.capture.core.replay import replay
from penstock.capture.core.rows import MessageRows, PacketRows, rows_of_converted
from penstock.capture.live.driver import Capture

__all__ = ["Capture", "MessageRows", "PacketRows", "replay", "rows_of_converted"]
