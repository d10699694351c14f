"""The client for applications: connect to a plant, subscribe, read messages, publish.

    with penstock.connect("penstock://127.0.0.1:7400", credentials="alice.toml") as client:
        for message in client.subscribe("md.us.eq.AAPL.>"): ...
        client.publisher("app.desk.>").publish("app.desk.mid", b"187.25")

The administration server gives the addresses and keys of streams; the data comes directly from feed adapters, over
multicast or TCP, and from other clients' publishers, over multicast. Read docs/how-to/client.md first; then client.py,
subscription.py, and feed_subscription.py, which processes messages before the application receives them.
"""

from penstock.capture.core.message_reader import UnreadMessage
from penstock.client.batch import Batch
from penstock.client.brokered_publisher import BrokeredPublisher
from penstock.client.client import Client
from penstock.client.config import ClientConfig
from penstock.client.connecting import connect
from penstock.client.contributor import Contributor
from penstock.client.nodes import NodeRecords, NodeSubscription
from penstock.client.subscription import Statistics, Subscription
from penstock.middleware.core.events import SessionEvent

__all__ = [
    "Batch",
    "BrokeredPublisher",
    "Client",
    "ClientConfig",
    "Contributor",
    "NodeRecords",
    "NodeSubscription",
    "SessionEvent",
    "Statistics",
    "Subscription",
    "UnreadMessage",
    "connect",
]
