"""The consumer's side of a distribution node: critical and metered messages, adaptive records.

    with open_records("127.0.0.1:7411", "md.us.eq.*.quote") as quotes:
        print(quotes["md.us.eq.AAPL.quote"].bid_price)

    with open_messages("127.0.0.1:7411", "md.us.eq.AAPL.>") as messages:
        for message in messages: ...

Nothing here runs in the node. Read connect.py first, then records.py and messages.py, which applications use. They read
from event_reader.py and record_reader.py, in this process or in an offload process (offload/). engine/live/link.py
keeps the connection.
"""

from penstock.engine.client.connect import open_messages, open_records
from penstock.engine.client.discovery import find_node
from penstock.engine.client.filters import NotificationFilter, TradingSession
from penstock.engine.client.messages import (
    Missed,
    NodeBatch,
    NodeMessages,
    NodeStatistics,
    UnreadRecord,
    Withdrawn,
)
from penstock.engine.client.records import Changes, Records

__all__ = [
    "Changes",
    "Missed",
    "NodeBatch",
    "NodeMessages",
    "NodeStatistics",
    "NotificationFilter",
    "Records",
    "TradingSession",
    "UnreadRecord",
    "Withdrawn",
    "find_node",
    "open_messages",
    "open_records",
]
