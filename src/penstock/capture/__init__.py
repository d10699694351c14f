"""Capture: what a receiver delivers goes into a journal, packet by packet, and comes out again as it was delivered.

    Capture       from a MulticastReceiver into a JournalWriter
    replay        a journal's records as the receiver's Delivers and LossReceipts

docs/protocol/capture.md says what a record holds.
"""

from penstock.capture.driver import Capture
from penstock.capture.replay import replay

__all__ = ["Capture", "replay"]
