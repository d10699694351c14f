"""The publisher's and the consumer's side of assured messaging.

open_assured() opens a session without an administration server, Client.assured() of penstock.client opens one with it.
Read assured/core/session/session.py first (it keeps the link, without I/O), then parts.py there; connection.py has the
session object of applications.
"""

from penstock.assured.client.connection import Assured, open_assured
from penstock.assured.client.endpoint import AssuredEndpoint
from penstock.assured.client.publisher import AssuredPublisher
from penstock.assured.client.transaction import Transaction
from penstock.assured.core.session._inbox import Delivery

__all__ = ["Assured", "AssuredEndpoint", "AssuredPublisher", "Delivery", "Transaction", "open_assured"]
