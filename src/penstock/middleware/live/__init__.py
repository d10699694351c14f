"""The middleware on real sockets: a publisher and receivers on UDP multicast.

    with MulticastPublisher(channel) as publisher:          with MulticastReceiver([channel]) as receiver:
        publisher.publish("md.us.eq.AAPL.quote", quote)         for message in receiver: ...

MergingReceiver (merging_receiver.py) merges the streams of redundant publishers.
"""

from penstock.middleware.live.publisher import MulticastPublisher
from penstock.middleware.live.receiver import MulticastReceiver, Received

__all__ = ["MulticastPublisher", "MulticastReceiver", "Received"]
