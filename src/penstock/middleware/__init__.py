"""Numbering, loss detection, repair, keep-alives, duplicates and fragments, for publishers, filters and receivers.

core/ has three cores without I/O. `Publisher` turns messages into numbered packets and answers repair requests;
`Receiver` turns packets from any number of publishers into each stream's messages, once and in order, or reports what
was lost; `Merger` merges the streams of redundant publishers. live/ runs the cores on UDP multicast. Topics and
interests belong to penstock.topics. Read core/events.py first, then core/receiver.py and core/incoming_stream.py, then
core/merger.py and core/source_stream.py.
"""

from penstock.base.core import Tick
from penstock.middleware import unicast
from penstock.middleware.config import MergerConfig, PublisherConfig, ReceiverConfig
from penstock.middleware.core.batch import OutgoingBatch, Packable, TopicList
from penstock.middleware.core.events import (
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
from penstock.middleware.core.merger import Merger
from penstock.middleware.core.publisher import Publisher
from penstock.middleware.core.receiver import Receiver

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
