"""The publisher's and the consumer's side of assured messaging.

open_assured() is the way in, without an administration server; penstock.client has the same with one. Read session.py
first for how a link is kept (a core without I/O), then parts.py; connection.py is what applications hold.
"""

from penstock.assured.client.connection import Assured, open_assured
from penstock.assured.client.endpoint import AssuredEndpoint
from penstock.assured.client.publisher import AssuredPublisher
from penstock.assured.client.transaction import Transaction
from penstock.assured.core.session._inbox import Delivery

__all__ = ["Assured", "AssuredEndpoint", "AssuredPublisher", "Delivery", "Transaction", "open_assured"]
