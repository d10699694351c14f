"""The other end of a filter module's control connection: applications that receive by way of it, publishers beside it.

    with FilteredReceiver("127.0.0.1:7402", ["md.us.eq.AAPL.>"]) as receiver:
        for message in receiver: ...

Nothing here runs in the module. Read receiver.py first; link.py keeps the connection, wishes.py what is wanted,
choosing.py picks from shared copies, offering.py is for publishers.
"""

from penstock.filter.application.finding import find_filter
from penstock.filter.application.offering import offered_publisher
from penstock.filter.application.receiver import FilteredReceiver

__all__ = ["FilteredReceiver", "find_filter", "offered_publisher"]
