"""The subscriber's and the publisher's side of a distribution tree.

open_stream() and open_publisher() need no administration server; penstock.client has the same with one. Read
core/tree_client.py first (how a link is kept), then core/subscriber.py and core/publisher.py (cores without I/O),
core_runner.py and handle.py (how the cores are run), subscription.py and publication.py (what applications hold).
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
