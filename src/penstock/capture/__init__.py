"""Capture: what a receiver delivers goes into a journal, packet by packet, and comes out again as it was delivered.

    Capture       from a MulticastReceiver into a JournalWriter
    replay        a journal's records as the receiver's Delivers and LossReceipts
    PacketRows    a journal's records as MessageRows: arrays over the bytes, for work on many messages at once

docs/reference/protocol/capture.md says what a record holds.
"""

from penstock.capture.driver import Capture
from penstock.capture.replay import replay
from penstock.capture.rows import MessageRows, PacketRows, rows_of_converted

__all__ = ["Capture", "MessageRows", "PacketRows", "replay", "rows_of_converted"]
