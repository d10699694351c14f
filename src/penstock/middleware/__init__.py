"""What publishers, filters and receivers share: numbering, loss detection, repair, keep-alive, duplicates, fragments.

Three cores without I/O. `Publisher` turns messages into numbered packets and answers repair requests; `Receiver` turns
packets from any number of publishers into each stream's messages, once and in order, or says what was lost;
`Merger` puts together what redundant publishers send alike. Topics, interests and sockets are not their business. Read
events.py first, then receiver.py and stream.py, then merge.py and sourcestream.py.
"""

from penstock.base.core import Tick
from penstock.middleware import unicast
from penstock.middleware.batch import OutgoingBatch, Packable, TopicList
from penstock.middleware.config import MergerConfig, PublisherConfig, ReceiverConfig
from penstock.middleware.events import (
    Address,
    Close,
    Closed,
    Collision,
    DatagramReceived,
    DatagramsReceived,
    Deliver,
    DeliverBatch,
    Discontinuity,
    Expect,
    ExpectEnd,
    LossReceipt,
    Merged,
    MergedBatch,
    MergeGap,
    Multicast,
    MulticastStored,
    OutgoingMessage,
    Publish,
    PublishBatch,
    SessionEvent,
    StartAfter,
    StreamEnded,
    StreamKey,
    StreamStarted,
    Unicast,
    records_of,
)
from penstock.middleware.merge import Merger
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
    "Discontinuity",
    "Expect",
    "ExpectEnd",
    "LossReceipt",
    "MergeGap",
    "Merged",
    "MergedBatch",
    "Merger",
    "MergerConfig",
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
    "SessionEvent",
    "StartAfter",
    "StreamEnded",
    "StreamKey",
    "StreamStarted",
    "Tick",
    "TopicList",
    "Unicast",
    "records_of",
    "unicast",
]
