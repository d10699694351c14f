"""The publisher's and the consumer's side of assured messaging.

open_assured() is the way in, without an administration server; penstock.client has the same with one. Read session.py
first for how a link is kept (a core without I/O), then parts.py; connection.py is what applications hold.
"""

from penstock.assured.application._inbox import Delivery
from penstock.assured.application.connection import Assured, open_assured
from penstock.assured.application.consuming import AssuredEndpoint
from penstock.assured.application.publishing import AssuredPublisher
from penstock.assured.application.transacting import Transaction

__all__ = ["Assured", "AssuredEndpoint", "AssuredPublisher", "Delivery", "Transaction", "open_assured"]
