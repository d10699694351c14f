"""The client side of a filter module: applications that receive through it, publishers on its host.

    with FilteredReceiver("127.0.0.1:7402", ["md.us.eq.AAPL.>"]) as receiver:
        for message in receiver: ...

Nothing here runs in the module. Read receiver.py first; link.py has the connection, wanted.py the interests,
selection.py filters shared copies, ring_offer.py is for publishers.
"""

from penstock.filter.client.discovery import find_filter
from penstock.filter.client.receiver import FilteredReceiver
from penstock.filter.client.ring_offer import offered_publisher

__all__ = ["FilteredReceiver", "find_filter", "offered_publisher"]
