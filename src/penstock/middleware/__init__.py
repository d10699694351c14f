"""What publishers, filters and receivers share: numbering, loss detection, repair, keep-alive, duplicates, fragments.

Two cores without I/O. `Publisher` turns messages into numbered packets and answers repair requests; `Receiver` turns
packets from any number of publishers into each stream's messages, once and in order, or says what was lost. Topics,
interests and sockets are not its business. Read events.py first, then receiver.py and stream.py.
"""

from penstock.base.core import Tick
from penstock.middleware import unicast
from penstock.middleware.batch import OutgoingBatch, Packable, TopicList
from penstock.middleware.config import PublisherConfig, ReceiverConfig
from penstock.middleware.events import (
    Address,
    Close,
    Closed,
    Collision,
    DatagramReceived,
    DatagramsReceived,
    Deliver,
    DeliverBatch,
    LossReceipt,
    Multicast,
    MulticastStored,
    OutgoingMessage,
    Publish,
    PublishBatch,
    StreamEnded,
    StreamKey,
    StreamStarted,
    Unicast,
    records_of,
)
from penstock.middleware.publisher import Publisher
from penstock.middleware.receiver import Receiver

__all__ = [
    "Address",
    "Close",
    "Closed",
    "Collision",
    "DatagramReceived",
    "DatagramsReceived",
    "Deliver",
    "DeliverBatch",
    "LossReceipt",
    "Multicast",
    "MulticastStored",
    "OutgoingBatch",
    "OutgoingMessage",
    "Packable",
    "Publish",
    "PublishBatch",
    "Publisher",
    "PublisherConfig",
    "Receiver",
    "ReceiverConfig",
    "StreamEnded",
    "StreamKey",
    "StreamStarted",
    "Tick",
    "TopicList",
    "Unicast",
    "records_of",
    "unicast",
]
