"""The subscriber's and the publisher's side of a distribution tree.

open_stream() and open_publisher() are the ways in, without an administration server; penstock.client has the same with
one. Read party.py first for how a link is kept, then subscriber.py and publisher.py (cores without I/O), running.py
for how they are run.
"""

from penstock.tree.client.core.events import Receipt
from penstock.tree.client.publication import StreamPublisher, open_publisher
from penstock.tree.client.subscription import StreamStatistics, StreamSubscription, open_stream
from penstock.tree.core.control import Position

__all__ = [
    "Position",
    "Receipt",
    "StreamPublisher",
    "StreamStatistics",
    "StreamSubscription",
    "open_publisher",
    "open_stream",
]
